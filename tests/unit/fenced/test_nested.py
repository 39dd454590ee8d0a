"""A call or a block within an execution that has its key shares the lease."""

from __future__ import annotations

from celery_fence import Contended, hold


class TestNested:
    def test_calls_on_the_same_key_share_the_lease(self, task, in_worker, leases):
        held = []

        def nests(self):
            if len(task.tokens) < 3:
                self("k")
                held.append(leases.holder("job:k") is not None)

        in_worker(task(nests), "k")

        assert len(task.tokens) == 3
        assert len(set(task.tokens)) == 1
        assert held == [True, True]
        assert leases.holder("job:k") is None

    def test_calls_on_another_key_have_their_own(self, task, in_worker, leases):
        def nests(self):
            before = self.lease.key
            if before == "job:outer":
                self("inner")
            return [before, self.lease.key]

        assert in_worker(task(nests), "outer").value == ["job:outer", "job:outer"]
        assert len(set(task.tokens)) == 2

    def test_a_key_held_by_another_makes_a_nested_call_a_miss_of_the_outer_task(
        self, task, in_worker, occupy
    ):
        occupy("job:inner")
        outcome = in_worker(task(lambda self: self("inner"), miss_policy="raise"), "outer")

        assert isinstance(outcome.value, Contended)
        assert outcome.value.key == "job:inner"

    def test_an_eager_call_inside_is_its_own_run(self, task, in_worker):
        inner = task(name="inner")
        outcome = in_worker(task(lambda self: inner.apply(("other",)).state, name="outer"), "k")

        assert outcome.value == "SUCCESS"
        assert len(set(task.tokens)) == 2


def test_a_block_of_another_apps_store_is_another_key(app, task, leases):
    other = type(app)("another", set_as_current=False, broker="memory://")
    other.conf.fence_url = f"memory://{app.main}-another"

    with hold("job:<n>", {"n": "k"}, app=other) as theirs, hold("job:<n>", {"n": "k"}, app=app) as ours:
        assert theirs is not ours
        assert leases.holder("job:k").owner == ours.owner
