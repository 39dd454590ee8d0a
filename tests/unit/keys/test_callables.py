"""A callable makes the key from the task's own arguments."""

from urllib.parse import unquote

import pytest
from celery import Task

from celery_fence.errors import ConfigError, LockKeyError
from tests.unit.keys.rules import rule


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
