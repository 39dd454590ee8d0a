"""A key that may never exclude anything is warned about."""

import pytest

from celery_fence.locking.keys import warnings_for
from tests.unit.keys.rules import rule


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
