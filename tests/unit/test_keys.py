"""One piece of work has one key, two have two, and what can't be a key says why."""

import functools
import ipaddress
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest
from celery import Celery, Task, shared_task
from pydantic import BaseModel

from celery_fence.errors import ConfigError, LockKeyError
from celery_fence.locking.keys import key_rule, render_template, signature_of, warnings_for

app = Celery("keys", set_as_current=False)


def sync(tenant_id, full=False, *, region="eu"): ...


def rule(spec, function=sync, **options):
    return key_rule(spec, signature=signature_of(function, **options), task="billing.sync")


def key_of(value, template="item:<value>"):
    def task(value): ...

    return rule(template, task).render((value,), {})


class TestBinding:
    def test_position_name_and_default_give_one_key(self):
        by = rule("tenant:<tenant_id>:<full>:<region>")
        forms = [
            ((7,), {}),
            ((7, False), {}),
            ((), {"tenant_id": 7}),
            ((7,), {"region": "eu", "full": False}),
        ]

        assert {by.render(*form) for form in forms} == {"tenant:7:false:eu"}

    def test_self_of_a_bound_task_never_counts(self):
        @app.task(bind=True)
        def bound(self, tenant_id): ...

        assert rule("tenant:<tenant_id>:sync", bound.run).render((7,), {}) == "tenant:7:sync"
        assert "self" not in signature_of(bound.run).parameters

    def test_autoretry_keeps_the_signature(self):
        @app.task(bind=True, autoretry_for=(OSError,))
        def retried(self, tenant_id, mode="full"): ...

        assert rule("<tenant_id>:<mode>", retried.run).render((7,), {}) == "7:full"

    def test_pydantic_tasks_keep_the_signature(self):
        @app.task(pydantic=True)
        def charge(order: Order, mode: str = "full"): ...

        assert rule("<order[id]>:<mode>", charge.run).render(({"id": 7},), {}) == "7:full"

    def test_shared_and_class_based_tasks_are_bound_like_any_other(self):
        @shared_task
        def shared(tenant_id): ...

        class ClassBased(Task):
            name = "class-based"

            def run(self, tenant_id): ...

        for run in (shared.run, app.register_task(ClassBased()).run):
            assert rule("tenant:<tenant_id>", run).render((7,), {}) == "tenant:7"

    def test_a_wrapped_function_shows_its_own_signature(self):
        @functools.wraps(sync)
        def wrapper(*args, **kwargs): ...

        assert rule("<tenant_id>", wrapper).render((7,), {}) == "7"

    def test_the_injected_parameter_is_neither_asked_for_nor_part_of_the_digest(self):
        def fenced(tenant_id, *, fencing_token): ...

        def plain(tenant_id): ...

        digests = [
            rule("<arguments>", fenced, without="fencing_token").render((7,), {}),
            rule("<arguments>", plain).render((7,), {}),
        ]
        assert digests[0] == digests[1]
        with pytest.raises(ConfigError, match="no parameter 'fencing_token'"):
            rule("<fencing_token>", fenced, without="fencing_token")

    def test_a_catch_all_that_is_named_like_the_injected_parameter_stays(self):
        def catch_all(**fencing_token): ...

        assert rule("<x>", catch_all, without="fencing_token").render((), {"x": 1}) == "1"

    def test_variadic_arguments_are_a_list_and_a_dict(self):
        def task(*rows, **options): ...

        assert (
            rule("<rows[1]>:<options[mode]>:<mode>", task).render((1, 2), {"mode": "full"}) == "2:full:full"
        )

    def test_a_call_that_does_not_fit_the_function_has_no_key(self):
        with pytest.raises(TypeError, match=r"^billing\.sync\(\): missing a required argument: 'tenant_id'"):
            rule("<tenant_id>").render((), {})

    def test_what_has_no_signature_is_refused(self):
        with pytest.raises(ConfigError, match="no signature"):
            signature_of(42)


class Order(BaseModel):
    id: int


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


class TestLength:
    def test_a_long_value_keeps_a_readable_head_and_differs_at_its_end(self):
        one, other = key_of("order " * 20_000 + "a"), key_of("order " * 20_000 + "b")

        assert one != other
        assert one.startswith("item:order%20order%20")
        assert max(len(one), len(other)) <= len("item:") + 120

    def test_the_longest_short_value_stays_whole(self):
        assert key_of("x" * 120) == "item:" + "x" * 120
        assert "~" in key_of("x" * 121)
        assert "~" in key_of("é" * 21)

    def test_a_short_value_cannot_pose_as_a_long_one(self):
        long = key_of("x" * 200)

        assert key_of(long.removeprefix("item:")) != long

    def test_the_head_is_never_cut_inside_an_escape(self):
        for shift in range(3):
            head = key_of("x" * shift + "é" * 200).removeprefix("item:").partition("~")[0]
            assert len(head.replace("%C3", "").replace("%A9", "")) == shift

    def test_a_long_list_differs_from_its_long_json_text(self):
        names = ["ann"] * 100
        text = "[" + ",".join(['"ann"'] * 100) + "]"

        assert key_of(names) != key_of(text)

    def test_the_whole_key_is_bounded_and_still_told_apart(self):
        def task(*rows): ...

        by = rule(":".join(f"<rows[{n}]>" for n in range(6)), task)
        one, other = (by.render((*["x" * 110] * 5, last), {}) for last in "ab")

        assert one != other
        assert len(one) <= 512
        assert one.startswith("x" * 110 + ":")


class TestTemplates:
    @pytest.mark.parametrize(
        ("template", "key"),
        [
            ("nightly", "nightly"),
            ("tenant:<tenant_id>:sync", "tenant:7:sync"),
            ("<task>:<tenant_id>", "billing.sync:7"),
            ("lock(<tenant_id>)[<region>]", "lock(7)[eu]"),
            ("müller & co 100%:<tenant_id>", "m%C3%BCller%20&%20co%20100%25:7"),
            ("~<tenant_id>", "%7E7"),
        ],
    )
    def test_literal_text_is_the_author_s_made_safe_for_the_store(self, template, key):
        assert rule(template).render((7,), {}) == key

    def test_items_of_dicts_and_lists_before_and_after_the_serializer(self):
        def task(rows): ...

        by = rule("<rows[0][id]>:<rows[-1][7]>", task)

        assert by.render(([{"id": 1}, {"7": "x"}],), {}) == "1:x"
        assert by.render((({"id": 1}, {7: "x"}),), {}) == "1:x"

    @pytest.mark.parametrize(
        "payload", [{}, {"order": {}}, {"order": []}, {"order": "text"}, {"order": None}, 5]
    )
    def test_an_item_that_is_not_there_names_the_field(self, payload):
        def task(payload): ...

        with pytest.raises(LockKeyError, match=r"<payload\[order\]\[id\]> isn't there") as caught:
            rule("tenant:<payload[order][id]>", task).render((payload,), {})
        assert caught.value.field == "payload[order][id]"

    def test_arguments_is_a_digest_of_all_of_them_in_any_form(self):
        by = rule("<task>:<arguments>")
        same = {by.render((7,), {}), by.render((), {"full": False, "tenant_id": "7"})}

        assert len(same) == 1
        assert by.render((8,), {}) not in same
        assert by.render((7, True), {}) not in same

    def test_arguments_with_one_that_has_no_text_is_refused(self):
        with pytest.raises(LockKeyError, match="<arguments> is an object"):
            rule("<arguments>").render((object(),), {})

    @pytest.mark.parametrize(
        ("template", "says"),
        [
            ("", "is empty"),
            ("  ", "is empty"),
            ("tenant:<tennant_id>", "no parameter 'tennant_id'. Did you mean 'tenant_id'"),
            ("tenant:{tenant_id}", "{tenant_id} is not a placeholder here; write <tenant_id>"),
            ("tenant:{0!r:>30}", "write <name>"),
            ("tenant:$tenant_id", "$tenant_id is not a placeholder here; write <tenant_id>."),
            ("tenant:${tenant_id}:sync", "${tenant_id} is not a placeholder here; write <tenant_id>."),
            ("tenant:%(tenant_id)s", "%(tenant_id)s is not a placeholder here; write <tenant_id>."),
            ("tenant:%s:sync", "%s is not a placeholder here; write <name>."),
            ("<tenant_id['id']>", "has quotes or spaces around an item; write <tenant_id[id]>."),
            ('<tenant_id[0]["id"]?>', "has quotes or spaces around an item; write <tenant_id[0][id]?>."),
            ("<tenant_id[ id ]>", "has quotes or spaces around an item; write <tenant_id[id]>."),
            ("tenant:{}", "write <name>"),
            ("tenant:{", "write <name>"),
            ("tenant:<tenant_id.name>", "reads an attribute"),
            ("tenant:<tenant_id.__class__>", "reads an attribute"),
            ("tenant:<__class__>", "two underscores"),
            ("tenant:<tenant_id[__class__]>", "two underscores"),
            ("tenant:<tenant_id", "a '<' without its partner"),
            ("tenant:tenant_id>", "a '>' without its partner"),
            ("tenant:<<tenant_id>>", "without its partner"),
            ("tenant:<>", "no name in it"),
            ("tenant:< tenant_id >", "write <tenant_id>"),
            ("tenant:<tenant_id!r>", "is not a placeholder"),
            ("tenant:<tenant_id()>", "is not a placeholder"),
            ("tenant:<tenant_id[]>", "is not a placeholder"),
            ("tenant\n:<tenant_id>", "doesn't print"),
            ("<tenant_id><region>", "need a separator"),
            ("<tenant_id>and<region>", "need a separator"),
            ("<tenant_id> ~%<region>", "need a separator"),
            ("<task[0]>", "has no items"),
            ("x" * 256, "longer than 255 bytes"),
        ],
    )
    def test_that_cannot_be_right_are_refused_when_the_task_is_declared(self, template, says):
        with pytest.raises(ConfigError) as caught:
            rule(template)
        assert says in str(caught.value)
        assert "billing.sync" in str(caught.value)
        assert repr(template) in str(caught.value)

    @pytest.mark.parametrize("template", ["50%:<tenant_id>", "100%sure:<tenant_id>", "cost$:<tenant_id>"])
    def test_a_percent_or_a_dollar_sign_alone_is_text(self, template):
        assert rule(template).render((7,), {}).endswith(":7")

    def test_a_reserved_name_that_is_a_parameter_too_is_refused(self):
        def run(task): ...

        with pytest.raises(ConfigError, match="means two things"):
            rule("<task>", run)

    def test_with_a_catch_all_the_name_is_checked_when_the_key_is_made(self):
        def run(**kwargs): ...

        with pytest.raises(LockKeyError, match=r"<tenant_id> isn't given\. Did you mean 'tennant_id'"):
            rule("<tenant_id>", run).render((), {"tennant_id": 7})

    @pytest.mark.parametrize("separator", ["-", "_", ".", " - ", "to_"])
    def test_a_separator_that_values_may_contain_still_separates(self, separator):
        def task(a, b): ...

        by = rule(f"<a>{separator}<b>", task)
        pairs = [(f"x{separator}y", "z"), ("x", f"y{separator}z")]

        assert by.render(pairs[0], {}) != by.render(pairs[1], {})

    @pytest.mark.parametrize("spec", [3, None, b"x", ["a"]])
    def test_neither_text_nor_callable_is_refused(self, spec):
        with pytest.raises(ConfigError, match=r"must be a template such as .* or a callable"):
            rule(spec)


class TestCallables:
    def test_takes_the_task_s_own_arguments_with_their_defaults(self):
        seen = []

        def make(tenant_id, full, *, region):
            seen.append((tenant_id, full, region))
            return f"tenant:{tenant_id}"

        assert rule(make).render((), {"tenant_id": 7}) == "tenant:7"
        assert seen == [(7, False, "eu")]

    def test_its_text_is_used_as_it_is(self):
        assert rule(lambda *a, **k: "Kunde 7/Größe: 100%").render((7,), {}) == "Kunde 7/Größe: 100%"

    def test_its_tuple_is_escaped_and_joined(self):
        assert (
            rule(lambda t, *a, **k: ("tenant", t, [1])).render(("a:b",), {}) == "tenant:a%3Ab:~%5B%221%22%5D"
        )

    def test_a_long_text_keeps_its_head_and_differs_at_its_end(self):
        one, other = (rule(lambda t, *a, **k: t).render(("ä" * 1000 + last,), {}) for last in "ab")

        assert one != other
        assert one.startswith("ä" * 200)
        assert len(one.encode()) <= 512

    @pytest.mark.parametrize("answer", [3, None, b"x", {"a": 1}, ()])
    def test_neither_text_nor_a_tuple_says_what_it_must_return(self, answer):
        with pytest.raises(LockKeyError, match="must return text or a tuple of parts"):
            rule(lambda *a, **k: answer).render((7,), {})

    def test_a_list_of_keys_says_not_yet(self):
        with pytest.raises(LockKeyError, match="yet"):
            rule(lambda *a, **k: ["a", "b"]).render((7,), {})

    @pytest.mark.parametrize("text", ["", " ", "a\nb", "a\x00", "\ud800"])
    def test_a_text_that_is_no_key_is_refused(self, text):
        with pytest.raises(LockKeyError, match="one line of printable text"):
            rule(lambda *a, **k: text).render((7,), {})

    @pytest.mark.parametrize("part", [None, "", object()])
    def test_a_part_that_is_no_text_is_named(self, part):
        with pytest.raises(LockKeyError, match="part 2") as caught:
            rule(lambda *a, **k: ("a", part)).render((7,), {})
        assert caught.value.field == "part 2"

    def test_what_it_raises_is_kept_as_the_cause(self):
        with pytest.raises(LockKeyError, match="raised ZeroDivisionError") as caught:
            rule(lambda *a, **k: 1 / 0).render((7,), {})
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_one_that_cannot_take_the_arguments_is_refused_when_the_task_is_declared(self):
        with pytest.raises(ConfigError, match=r"can't take the task's own arguments \(tenant_id, full=False"):
            rule(lambda other: other)

    def test_a_function_that_became_a_method_of_the_task_is_called_without_it(self):
        class Base(Task):
            lock_key = lambda tenant_id, full, *, region: f"tenant:{tenant_id}"  # noqa: E731

        assert rule(Base().lock_key).render((7,), {}) == "tenant:7"

    def test_a_method_that_names_self_is_called_with_it(self):
        class Base(Task):
            name = "base"

            def lock_key(self, *args, **kwargs):
                return f"{self.name}:{args[0]}"

        assert rule(Base().lock_key).render((7,), {}) == "base:7"

    def test_its_text_for_metrics_is_its_name(self):
        assert rule(unquote, lambda string: None).text == "urllib.parse.unquote"


class TestHold:
    def test_gives_the_key_that_a_task_with_these_arguments_has(self):
        def charge(id): ...  # noqa: A002

        values = {"id": "a:b"}

        assert render_template("invoice:<id>", values) == rule("invoice:<id>", charge).render((), values)

    def test_a_missing_value_is_named(self):
        with pytest.raises(LockKeyError, match=r"<id> isn't given\. Did you mean 'idd'") as caught:
            render_template("invoice:<id>", {"idd": 1})
        assert caught.value.field == "id"

    def test_without_a_task_there_is_no_task_name(self):
        with pytest.raises(LockKeyError, match="<task> isn't given"):
            render_template("<task>", {})
        assert render_template("<task>", {}, task="t") == "t"
        assert render_template("<task>", {"task": 7}) == "7"

    def test_a_wrong_template_is_a_config_error(self):
        with pytest.raises(ConfigError):
            render_template("invoice:{id}", {"id": 1})


class TestAdvice:
    @pytest.mark.parametrize(
        "field",
        ["request_id", "task_id", "uuid", "run_uuid", "timestamp", "created_at", "nonce", "x[trace_id]"],
    )
    def test_a_field_that_is_new_for_every_call_is_warned_about(self, field):
        def task(tenant_id, **rest): ...

        warnings = warnings_for(rule(f"tenant:<tenant_id>:<{field}>", task))

        assert len(warnings) == 1
        assert f"<{field}>" in warnings[0]
        assert "billing.sync" in warnings[0]

    @pytest.mark.parametrize("template", ["<tenant_id>:<full>:<region>", "<task>:<arguments>"])
    def test_a_key_of_every_argument_is_warned_about(self, template):
        assert "every argument" in warnings_for(rule(template))[0]

    @pytest.mark.parametrize("template", ["nightly", "tenant:<tenant_id>:sync", "<tenant_id>:<region>"])
    def test_a_sensible_key_is_not(self, template):
        assert warnings_for(rule(template)) == []

    @pytest.mark.parametrize("field", ["update_id", "runtime", "invoice_id", "job_id", "grid", "candidate"])
    def test_a_name_that_only_looks_like_it_is_not(self, field):
        def task(**rest): ...

        assert warnings_for(rule(f"<{field}>", task)) == []

    def test_a_callable_cannot_be_judged(self):
        assert warnings_for(rule(lambda *a, **k: "x")) == []
