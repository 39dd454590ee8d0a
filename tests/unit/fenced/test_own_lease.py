"""An execution has a lease of its own for as long as its body runs."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from celery import Celery
from kombu import Exchange, Queue

from celery_fence import ConfigError, Contended, FencedTask, current_lease, hold


class TestTheLease:
    @pytest.mark.parametrize("end", ["return", "raise", "retry"])
    def test_is_given_back_at_every_end(self, task, in_worker, leases, end):
        def ends(self):
            assert leases.holder("job:k")
            if end == "raise":
                raise ValueError("the body's")
            if end == "retry":
                raise self.retry(countdown=0)

        in_worker(task(ends), "k")

        assert leases.holder("job:k") is None

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_is_given_back_at_ends_that_are_no_exception(self, task, in_worker, leases, error):
        def ends(self):
            raise error

        with pytest.raises(error):
            in_worker(task(ends), "k")
        assert leases.holder("job:k") is None

    def test_is_given_back_before_the_next_step_of_a_chain_is_sent(self, app, task, in_worker, leases):
        free = []
        from celery.signals import before_task_publish

        def note(**_):
            free.append(leases.holder("job:k") is None)

        body = task()
        before_task_publish.connect(note)
        following = dict(body.si("k"))
        in_worker(body, "k", chain=[following])
        before_task_publish.disconnect(note)

        assert free == [True]

    def test_of_a_body_is_none_outside_of_it(self, task, in_worker):
        body = task()
        in_worker(body, "k")

        assert body.lease is None
        assert current_lease() is None

    def test_may_be_handed_to_a_thread(self, task, in_worker):
        seen = []

        def hands_over(self):
            lease = self.lease
            thread = threading.Thread(
                target=lambda: seen.append((lease.check(), lease.token, current_lease()))
            )
            thread.start()
            thread.join(5)

        in_worker(task(hands_over), "k")

        assert seen == [(None, task.tokens[0], None)]

    def test_holder_can_be_asked_for(self, task, occupy):
        body = task()
        assert body.lease_holder("k") is None
        occupy("job:k", task_id="theirs")

        assert body.lease_holder("k").facts.task_id == "theirs"
        assert body.lease_holder(key="k").owner == "somebody else"

    def test_of_an_execution_has_an_owner_of_its_own_or_the_one_it_was_handed(self, task, in_worker):
        owners = []
        body = task(lambda self: owners.append(self.lease.owner))
        in_worker(body, "k", id="same")
        in_worker(body, "k", id="same")
        in_worker(body, "k", fence_run={"owner": "made by the parent"})

        assert owners[0] != owners[1]
        assert owners[2] == "made by the parent"


def test_two_apps_in_one_process_share_neither_leases_nor_settings(task, in_worker, occupy, app):
    other = Celery("other", set_as_current=False, broker="memory://", backend="cache+memory://")
    other.conf.update(fence_url="memory://another-place", fence_ttl=5.0)

    @other.task(base=FencedTask, bind=True, lock_key="job:<key>", shared=False, name="the task")
    def theirs(self, key):
        return self.lease.ttl

    occupy("job:k")

    assert theirs.apply(("k",)).get() == 5.0
    assert isinstance(task(miss_policy="raise").apply(("k",)).result, Contended)
    with hold("job:k", app=other) as lease:
        assert lease.ttl == 5.0
    other.close()


def test_a_thousand_keys_at_once_in_threads_have_a_lease_each(task, app, leases):
    """What executions share is the task; nothing of one shows in another."""
    body = task(lambda self: (self.lease.key, self.lease.token))
    results = []

    def run(number):
        results.extend(body.apply((f"{number}-{each}",)).get() for each in range(25))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert Counter(key for key, _ in results) == Counter(f"job:{n}-{e}" for n in range(8) for e in range(25))
    assert sorted(token for _, token in results) == sorted(task.tokens)
    assert list(leases.leases()) == []


@pytest.mark.parametrize("place", ["option", "setting"])
def test_a_lost_delay_goes_with_the_lease(app, task, in_worker, place):
    """What a store does with it is told by the contract of stores."""
    if place == "setting":
        app.conf.fence_lost_delay = 7
    delayed = task(
        lambda self: self.lease.claim.lost_delay, **({"lock_lost_delay": 7} if place == "option" else {})
    )

    assert in_worker(delayed, "k").value == 7


def test_a_broadcast_message_is_refused(app, task, in_worker):
    app.amqp.queues.add(Queue("one of many", Exchange("to all", type="fanout")))
    outcome = in_worker(task(), "k", delivery_info={"exchange": "to all", "routing_key": ""})

    assert outcome.state == "FAILURE"
    assert isinstance(outcome.value, ConfigError)
    assert "'to all'" in str(outcome.value)
