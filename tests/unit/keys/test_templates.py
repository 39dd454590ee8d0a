"""A template that can't be right is refused, and a name in it means one thing."""

import pytest

from celery_fence.errors import ConfigError, LockKeyError
from celery_fence.locking.keys import render_template
from tests.unit.keys.rules import rule


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
