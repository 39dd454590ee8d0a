"""A body gets the fencing token of its own execution, and no message carries one."""

from __future__ import annotations

import json

from celery_fence import FencedTask, current_lease


class TestTheToken:
    def test_is_that_of_the_lease_of_this_execution(self, task, in_worker, leases):
        def same(self):
            holder = leases.holder("job:k")
            return [
                self.lease.token == current_lease().token == holder.token,
                holder.facts.task_id == self.request.id,
            ]

        assert in_worker(task(same), "k").value == [True, True]

    def test_grows_from_run_to_run(self, task, in_worker):
        body = task()
        for _ in range(3):
            in_worker(body, "k")

        assert task.tokens == sorted(set(task.tokens))

    def test_is_in_no_message_that_the_body_retries(self, task, in_worker, sent, leases):
        body = task(lambda self: self.retry(countdown=0))
        outcome = in_worker(body, "k")

        assert outcome.state == "RETRY"
        ((headers, message),) = sent
        assert "fencing_token" not in json.dumps([headers, message], default=repr)
        assert leases.holder("job:k") is None

    def test_is_not_in_the_arguments_that_hooks_and_requests_show(self, task, in_worker):
        seen = []

        class Looks(FencedTask):
            abstract = True

            def after_return(self, status, retval, task_id, args, kwargs, einfo):  # noqa: PLR0917
                seen.append(kwargs)

        in_worker(task(lambda self: seen.append(dict(self.request.kwargs)), base=Looks), "k")

        assert seen == [{}, {}]

    def test_is_not_in_the_request_of_an_eager_run_and_its_retry_warns_of_nothing(self, task, caplog):
        def retries_once(self):
            if self.request.retries == 0:
                raise self.retry(countdown=0)
            return dict(self.request.kwargs)

        assert task(retries_once).apply(("k",)).get() == {}
        assert "fencing_token" not in caplog.text

    def test_that_a_message_forges_is_replaced_and_warned_about(self, task, in_worker, caplog):
        in_worker(task(), "k", kwargs={"fencing_token": 999_999})

        assert task.tokens != [999_999]
        assert [record.levelname for record in caplog.records if "fencing_token" in record.getMessage()] == [
            "WARNING"
        ]

    def test_that_a_message_forges_does_not_travel_on_with_a_retry(self, task, in_worker, sent):
        in_worker(task(lambda self: self.retry(countdown=0)), "k", kwargs={"fencing_token": 999_999})

        assert "fencing_token" not in json.dumps(sent, default=repr)

    def test_that_is_forged_in_an_eager_call_is_replaced_too(self, task):
        task().apply(("k",), {"fencing_token": 999_999})

        assert task.tokens != [999_999]

    def test_that_is_given_in_a_direct_call_is_replaced_too(self, task):
        task()("k", fencing_token=999_999)

        assert task.tokens != [999_999]

    def test_has_another_name_where_the_task_says_so_also_in_bare_keywords(self, app, in_worker):
        @app.task(base=FencedTask, lock_key="k", inject_as="epoch", name="renamed")
        def renamed(**kwargs):
            return sorted(kwargs)

        assert in_worker(renamed).value == ["epoch"]

    def test_is_not_injected_where_nobody_asked_for_it(self, app, in_worker):
        @app.task(base=FencedTask, lock_key="k", name="bare")
        def bare(**kwargs):
            return kwargs

        assert in_worker(bare).value == {}
