"""An eager call ends as a message would, as far as that can be without a message."""

from __future__ import annotations

import pytest

from celery_fence import Contended, DeadLettered, is_skipped, policies


class TestEager:
    def test_skip_gives_success_and_the_record(self, task, occupy):
        occupy("job:k")
        result = task(miss_policy="skip").apply(("k",))

        assert (result.state, is_skipped(result.get())) == ("SUCCESS", True)
        assert task.tokens == []

    def test_skip_with_a_result_of_its_own_gives_that(self, task, occupy):
        occupy("job:k")
        policy = policies.Skip(result=lambda arguments: f"not {arguments['key']}")

        assert task(miss_policy=policy).apply(("k",)).get() == "not k"

    @pytest.mark.parametrize("policy", ["retry", "requeue", "raise"])
    def test_a_miss_ends_at_once_with_contended(self, task, occupy, policy, sent):
        occupy("job:k")
        result = task(miss_policy=policy).apply(("k",))

        assert (result.state, type(result.result)) == ("FAILURE", Contended)
        assert sent == []

    def test_a_dead_letter_fails_with_its_error_and_publishes_nothing(self, task, occupy, sent):
        occupy("job:k")
        result = task(miss_policy="dead_letter").apply(("k",))

        assert (result.state, type(result.result)) == ("FAILURE", DeadLettered)
        assert sent == []

    def test_always_eager_is_the_same(self, app, task, occupy):
        app.conf.task_always_eager = True
        occupy("job:held")
        body = task(miss_policy="skip")

        assert is_skipped(body.delay("held").get())
        assert not is_skipped(body.delay("free").get())

    def test_the_result_of_a_plain_run_is_celerys(self, task):
        result = task(lambda self: {"celery_fence": "not a skip"}).apply(("k",))

        assert result.get() == {"celery_fence": "not a skip"}
        assert not is_skipped(result.get())

    def test_the_users_own_retries_still_work(self, task, leases):
        def fails_once(self):
            if self.request.retries == 0:
                raise self.retry(countdown=0)
            return self.request.retries

        assert task(fails_once, max_retries=2).apply(("k",)).get() == 1
        assert len(set(task.tokens)) == 2
        assert leases.holder("job:k") is None
