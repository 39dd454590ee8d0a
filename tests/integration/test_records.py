"""Work that is done once, over real workers: repeated messages, canvases, monitors, and what a flush takes away."""

from __future__ import annotations

import pytest
from bench.events import watching
from bench.waiting import wait_until
from bench.world import Bench
from celery import chain, chord, group

from celery_fence import is_skipped


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = make_bench(fence_ttl=5.0)
    first, second = bench.launch(concurrency=2), bench.launch(concurrency=2)
    first.await_ready()
    second.await_ready()
    return bench


@pytest.fixture
def once(bench):
    """A task on a key, for an order; orders have names of their own in each test."""

    def signature(key, order, *, task="once", **plan):
        return bench.app.tasks[task].si(key, {"order": order, **plan})

    return signature


@pytest.fixture
def order(bench):
    return bench.key("order")


def starts(bench, order):
    return [fact for fact in bench.ledger.facts("start") if fact["message"]["args"][1].get("order") == order]


def do_it(bench, signature):
    """The result of the first message, which does the work."""
    return signature.delay().get(timeout=30)


class TestAnotherMessage:
    def test_gets_the_result_and_a_monitor_sees_why(self, bench, once, order):
        key = bench.key()
        assert do_it(bench, once(key, order, value={"charged": 5})) == {"charged": 5}
        with watching(bench.app) as monitor:
            result = once(key, order, value="twice").delay()
            assert result.get(timeout=30) == {"charged": 5}
            monitor.wait_for_state(result.id, "SKIPPED")

        task = monitor.state.tasks[result.id]
        assert (task.result, task.exception) == ("{'charged': 5}", f"already_done: order:{order}")
        assert result.state == "SUCCESS"
        assert len(starts(bench, order)) == 1

    def test_that_comes_while_the_first_runs_follows_the_miss_policy(self, bench, once, order):
        key, gate = bench.key(), bench.gate()
        first = once(key, order, gate=gate.path.name, value=1).delay()
        wait_until(lambda: bench.ledger.facts("holding", key=key), what="the first one runs")
        skipped = once(key, order, task="once_skip").delay()
        waiting = once(key, order, value=2).delay()
        assert is_skipped(skipped.get(timeout=30))
        wait_until(lambda: bench.misses(key) >= 2, what="the other one waits")
        gate.open()

        assert [first.get(timeout=30), waiting.get(timeout=30)] == [1, 1]
        assert len(starts(bench, order)) == 1

    def test_of_the_same_key_at_once_with_others_runs_once_each(self, bench, once):
        """I03."""
        key, orders = bench.key(), [bench.key("order") for _ in range(4)]
        results = [once(key, order, value=order).delay() for order in orders * 5]

        assert [result.get(timeout=60) for result in results] == orders * 5
        assert [len(starts(bench, order)) for order in orders] == [1] * 4
        assert bench.ledger.overlaps(key) == []

    def test_after_a_failure_and_after_a_miss_runs(self, bench, once, order):
        """I05."""
        key = bench.key()
        once(key, order, then="raise").delay().get(timeout=30, propagate=False)
        bench.occupy(key)
        once(key, order, task="once_skip").delay().get(timeout=30)
        bench.vacate(key)

        assert do_it(bench, once(key, order, value=3)) == 3

    def test_of_the_work_s_own_retry_is_no_repeat(self, bench, once, order):
        assert do_it(bench, once(bench.key(), order, then="retry", countdown=0, value=4)) == 4
        assert len(starts(bench, order)) == 2

    def test_after_a_flush_runs_again(self, bench, once, order):
        """What Redis forgets isn't known; records in SQL are kept with the effect."""
        key = bench.key()
        do_it(bench, once(key, order, value=1))
        bench.lease_client.flushall()

        assert do_it(bench, once(key, order, value=2)) == 2


class TestACanvas:
    @pytest.fixture
    def done(self, bench, once, order):
        """Work that was done before, as a signature."""
        signature = once(bench.key(), order, value="done")
        do_it(bench, signature)
        return signature

    def joined(self, bench, key):
        return [fact["results"] for fact in bench.ledger.facts("join", key=key)]

    def test_of_a_chain_goes_on_with_the_recorded_result(self, bench, done):
        key = bench.key("then")
        final = chain(done, bench.app.tasks["join"].s(key=key), bench.app.tasks["join"].s(key=key)).delay()

        assert final.get(timeout=30) == "done"
        assert self.joined(bench, key) == ["done", "done"]

    def test_of_a_chord_counts_it_as_a_part(self, bench, once, done):
        key = bench.key("then")
        fresh = once(bench.key(), bench.key("order"), value="fresh")
        final = chord([done, fresh, done])(bench.app.tasks["join"].s(key=key))

        assert final.get(timeout=30) == ["done", "fresh", "done"]
        assert len(self.joined(bench, key)) == 1

    def test_of_a_group_can_be_waited_for(self, once, done):
        assert group([done, done]).delay().get(timeout=30) == ["done", "done"]

    def test_sends_its_link(self, bench, done):
        key = bench.key("then")
        done.apply_async(link=bench.app.tasks["join"].s(key=key))

        wait_until(lambda: self.joined(bench, key) == ["done"], what="the link ran")


def test_a_message_under_another_lock_key_fails_and_says_what_to_do(bench, once, order):
    key, gate = bench.key(), bench.gate()
    first = once(key, order, gate=gate.path.name, value=1).delay()
    wait_until(lambda: bench.ledger.facts("holding", key=key), what="the first one runs")
    second = once(bench.key(), order).delay()
    second.get(timeout=30, propagate=False)
    gate.open()

    assert type(second.result).__name__ == "ClaimMismatch"
    assert first.get(timeout=30) == 1


def test_records_expire_and_leave_nothing(bench, once, order):
    do_it(bench, once(bench.key(), order, value=1))
    client = bench.lease_client

    assert 86_000 < bench.store.record(f"order:{order}").left <= 86_400
    assert [name for name in client.scan_iter() if client.ttl(name) < 0] == []
