"""Each value has one text, and two values have two; what has none says why."""

import ipaddress
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest
from pydantic import BaseModel

from celery_fence.errors import LockKeyError
from tests.unit.keys.rules import Order, key_of


class Sent(BaseModel):
    at: datetime


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass(frozen=True)
class Money:
    amount: int
    currency: str


class Version:
    def __str__(self):
        return "1.2"


class TestValues:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (7, "7"),
            ("7", "7"),
            (-7, "-7"),
            (True, "true"),
            (False, "false"),
            (1.0, "1.0"),
            (-0.0, "0.0"),
            (Decimal("1.10"), "1.10"),
            (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (date(2026, 11, 29), "2026-11-29"),
            (time(1, 2), "01%3A02%3A00"),
            (datetime(2026, 11, 29, 1, 2, tzinfo=UTC), "2026-11-29T01%3A02%3A00%2B00%3A00"),
            (Colour.RED, "red"),
            (Level.HIGH, "3"),
            (b"ab", "ab"),
            (b"\xff", "%FF"),
            ("mü:~%<>{} /", "m%C3%BC%3A%7E%25%3C%3E%7B%7D%20%2F"),
            (Version(), "1.2"),
            (PurePosixPath("/srv"), "%2Fsrv"),
            (ipaddress.ip_address("10.0.0.1"), "10.0.0.1"),
        ],
    )
    def test_each_scalar_has_one_text(self, value, text):
        assert key_of(value) == f"item:{text}"

    @pytest.mark.parametrize(
        ("value", "json"),
        [
            (["ann", "bob"], '["ann","bob"]'),
            (("ann", "bob"), '["ann","bob"]'),
            ({"bob", "ann"}, '["ann","bob"]'),
            ({"b": 1, "a": [None, True]}, '{"a":[null,"true"],"b":"1"}'),
            ({1: 2}, '{"1":"2"}'),
            (Money(5, "EUR"), '{"amount":"5","currency":"EUR"}'),
            (Order(id=7), '{"id":"7"}'),
            ([], "[]"),
        ],
    )
    def test_each_container_is_canonical_json(self, value, json):
        key = key_of(value)

        assert unquote(key) == f"item:~{json}"

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (1, "1"),
            (uuid.UUID(int=1), str(uuid.UUID(int=1))),
            ([1], ["1"]),
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
            ({1: "x", None: "y", -0.0: "z"}, {"1": "x", "null": "y", "-0.0": "z"}),
            (Sent(at=datetime(2026, 11, 29, tzinfo=UTC)), {"at": "2026-11-29T00:00:00Z"}),
            (Order(id=7), {"id": 7}),
        ],
    )
    def test_the_same_by_design(self, one, other):
        assert key_of(one) == key_of(other)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (1, True),
            (1, 1.0),
            (["a"], '["a"]'),
            (["a"], "~%5B%22a%22%5D"),
            (["a,b"], ["a", "b"]),
            (["a"], "a"),
            ({}, []),
            ([None], ["null"]),
            ([""], []),
        ],
    )
    def test_different_on_purpose(self, one, other):
        assert key_of(one) != key_of(other)

    def test_none_empty_and_the_text_none_are_three_keys_where_they_are_welcome(self):
        keys = [key_of(value, "item:<value?>:x") for value in (None, "", "None", "~")]

        assert keys == ["item:~:x", "item::x", "item:None:x", "item:%7E:x"]

    @pytest.mark.parametrize("value", [None, "", b""])
    def test_none_and_empty_are_refused_unless_welcome(self, value):
        with pytest.raises(LockKeyError, match=r"<value> is (None|empty); write <value\?>"):
            key_of(value)

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            float("nan"),
            float("inf"),
            Decimal("NaN"),
            (n for n in "ab"),
            len,
            lambda: 1,
            Version,
            ValueError("x"),
            range(3),
            "\ud800",
            10**5000,
            {(1, 2): 3},
            {1: "a", "1": "b"},
            [object()],
            {"deep": [{"deeper": object()}]},
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_without_a_stable_text_the_field_is_named_and_nothing_else_happens(self, value):
        with pytest.raises(LockKeyError) as caught:
            key_of(value)
        assert caught.value.field == "value"
        assert caught.value.template == "item:<value>"
        assert caught.value.task == "billing.sync"
        assert "<value>" in str(caught.value)

    def test_an_open_file_and_a_value_that_contains_itself_are_refused(self):
        endless: list[object] = []
        endless.append(endless)
        with open(__file__) as file:  # noqa: PTH123 - the handle is the point
            for value in (file, endless):
                with pytest.raises(LockKeyError):
                    key_of(value)

    def test_a_database_model_is_refused_for_its_text_is_a_title(self):
        class Tenant:
            _meta = "as Django's models have"

            def __str__(self):
                return "ACME"

        with pytest.raises(LockKeyError, match="pass an id instead"):
            key_of(Tenant())

    def test_a_text_with_an_address_in_it_is_refused(self):
        class Proxy:
            def __str__(self):
                return object.__repr__(self)

        with pytest.raises(LockKeyError):
            key_of(Proxy())

    def test_what_kombu_would_send_for_an_object_is_its_text(self):
        class Reduced:
            def __json__(self):
                return {"id": 7}

        assert key_of(Reduced()) == key_of({"id": 7})
