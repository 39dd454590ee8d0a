"""What holds for every key, drawn from the awkward alphabet."""

import inspect
from datetime import UTC, date, datetime, time, timedelta, timezone
from urllib.parse import unquote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu.serialization import dumps, loads

from celery_fence.locking.keys import key_rule, render_template, signature_of

awkward = st.text(alphabet='ab:%<>{}~-._[]",é\n', max_size=6)
short = awkward.filter(bool)


finite = st.floats(allow_nan=False, allow_infinity=False)
zones = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30))])
json_scalars = st.one_of(
    awkward,
    st.integers(),
    st.booleans(),
    finite,
    st.uuids(),
    st.dates(min_value=date(1000, 1, 1)),
    st.datetimes(min_value=datetime(1000, 1, 1), timezones=zones),  # noqa: DTZ001 - naive ones are sent, too
    st.times(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.binary(max_size=6),
)
plain_scalars = st.one_of(awkward, st.integers(-(2**63), 2**63), st.booleans(), st.binary(max_size=6))
names = st.text(alphabet="ab:é", min_size=1, max_size=3)


def nested(scalars, keys=names):
    return st.recursive(
        scalars | st.none(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=6,
    )


def key_of(*values, template="<a?>:<b?>"):
    return render_template(template, dict(zip("abc", values, strict=False)))


def text_of(value):
    """What the design compares: scalars as text, containers as they are built."""
    if value is None or isinstance(value, bool):
        return {None: None, True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return frozenset((text_of(name), text_of(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(text_of(each) for each in value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value + 0.0 if isinstance(value, float) else value)


@given(tenant=awkward, region=awkward)
@example(tenant="a:b", region="c")
@example(tenant="a", region="b:c")
def test_a_key_can_be_taken_apart_again(tenant, region):
    """So no two sets of arguments can share one."""
    key = render_template("tenant:<tenant?>:<region?>", {"tenant": tenant, "region": region})

    assert [unquote(part) for part in key.split(":")] == ["tenant", tenant, region]


@given(tenant=short, region=short)
def test_a_key_of_required_values_can_be_taken_apart_too(tenant, region):
    key = render_template("tenant:<tenant>:<region>", {"tenant": tenant, "region": region})

    assert [unquote(part) for part in key.split(":")] == ["tenant", tenant, region]


@given(parts=st.lists(short, min_size=1, max_size=4))
def test_a_callable_s_tuple_can_be_taken_apart_again(parts):
    by = key_rule(tuple, signature=inspect.signature(lambda parts: None), task="t")

    assert [unquote(part) for part in by.render((parts,), {}).split(":")] == parts


@pytest.mark.parametrize("separator", [":", "-", ".", "_", ",", "](", " - ", "a:b", "%-", "=a="])
@given(one=st.tuples(awkward, awkward), other=st.tuples(awkward, awkward))
@example(one=("a-a", "b"), other=("a", "a-b"))
@example(one=("a.a", "b"), other=("a", "a.b"))
@example(one=("a_a", "b"), other=("a", "a_b"))
def test_two_sets_of_texts_share_a_key_only_when_they_are_equal(separator, one, other):
    template = f"x{separator}<a?>{separator}<b?>"

    assert (key_of(*one, template=template) == key_of(*other, template=template)) == (one == other)


@given(one=nested(json_scalars), other=nested(json_scalars))
def test_two_values_share_a_key_only_when_they_are_the_same_texts(one, other):
    assert (key_of(one, 1) == key_of(other, 1)) == (text_of(one) == text_of(other))


@given(value=nested(plain_scalars))
def test_a_value_and_the_text_of_its_key_are_told_apart(value):
    """A text that looks like a list, like None or like the digest of a long value is none of them."""
    part = key_of(value, 1).removesuffix(":1")
    assume(text_of(value) not in {part, unquote(part)})

    assert key_of(part, 1) != key_of(value, 1)
    assert key_of(unquote(part), 1) != key_of(value, 1)


@given(stem=st.text(alphabet="a:é%", min_size=121, max_size=300), one=awkward, other=awkward)
def test_long_values_that_differ_only_at_their_ends_have_two_bounded_keys(stem, one, other):
    keys = [key_of(stem + end, template="<a>") for end in (one, other)]

    assert (keys[0] == keys[1]) == (one == other)
    assert max(map(len, keys)) <= 120
    assert key_of(keys[0], template="<a>") != keys[0]


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@given(value=nested(json_scalars))
def test_caller_and_worker_agree(serializer, value):
    assert key_of(after(serializer, value), 1) == key_of(value, 1)


@given(value=nested(plain_scalars))
def test_caller_and_worker_agree_over_msgpack(value):
    pytest.importorskip("msgpack", reason="also on CI: msgpack is no dependency of the tests")
    assert key_of(after("msgpack", value), 1) == key_of(value, 1)


@given(value=nested(st.text(alphabet="ab:é", max_size=4) | st.integers() | st.booleans() | st.dates()))
def test_caller_and_worker_agree_over_yaml(value):
    assert key_of(after("yaml", value), 1) == key_of(value, 1)


@example(value={-0.0: "x"})
@given(value=st.dictionaries(st.integers() | st.booleans() | finite, short, max_size=1))
def test_caller_and_worker_agree_on_keys_that_json_turns_into_text(value):
    assert key_of(after("json", value), 1) == key_of(value, 1)


@given(value=nested(json_scalars))
def test_arguments_agree_between_caller_and_worker_too(value):
    by = key_rule("<arguments>", signature=inspect.signature(lambda value: None), task="t")

    assert by.render((value,), {}) == by.render((), after("json", {"value": value}))


@given(a=short, b=short, named=st.sets(st.sampled_from("abc")), given_c=st.booleans())
def test_position_name_and_default_give_one_key(a, b, named, given_c):
    def task(a, b, c="x"): ...

    by = key_rule("<a>:<b>:<c>", signature=signature_of(task), task="t")
    args, kwargs = [], {}
    for name, value in {"a": a, "b": b, **({"c": "x"} if given_c else {})}.items():
        if kwargs or name in named:
            kwargs[name] = value
        else:
            args.append(value)

    assert by.render(args, kwargs) == by.render((a, b, "x"), {})


@given(pairs=st.dictionaries(names, plain_scalars, max_size=4))
def test_a_dict_has_no_order(pairs):
    assert key_of(dict(reversed(pairs.items())), 1) == key_of(pairs, 1)


@given(values=st.lists(st.integers() | short, max_size=5))
def test_a_set_has_no_order(values):
    assume(len({str(value) for value in values}) == len(values))

    assert key_of(set(values), 1) == key_of(frozenset(values[::-1]), 1)


def after(serializer, value):
    """What arrives: through kombu, as a message's body goes."""
    content_type, encoding, body = dumps(value, serializer=serializer)
    return loads(body, content_type, encoding, accept=[content_type])
