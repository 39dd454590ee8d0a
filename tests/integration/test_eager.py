"""Eager mode, direct calls and nested calls: as in a worker, but in this process and without waiting."""

from __future__ import annotations

import threading

import pytest
import redis
from bench.app import App

from celery_fence import Contended, FencedTask, current_lease, hold, is_skipped
from celery_fence.locking.store import Claim
from celery_fence.stores import from_url
from celery_fence.testing.servers import embedded_server


@pytest.fixture(scope="module")
def server():
    with embedded_server() as server:
        yield server


@pytest.fixture
def make_app(server):
    apps = []

    def make(database: int = 0, **conf) -> App:
        app = App(f"eager-{database}", set_as_current=False, broker="memory://", backend="cache+memory://")
        app.conf.update(fence_url=server.url_of(database), fence_ttl=30.0, **conf)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def app(make_app):
    return make_app()


@pytest.fixture
def store(server):
    store = from_url(server.url)
    yield store
    store.close()


@pytest.fixture
def occupied(store):
    """``job:held`` is somebody else's for the whole test."""
    store.acquire(Claim("job:held", "somebody else", 60.0))
    yield
    store.force_release("job:held")


def make_task(app, **options):
    seen = []

    @app.task(base=FencedTask, bind=True, lock_key="job:<key>", name=f"sees-{id(seen)}", **options)
    def sees(self, key, *, fencing_token):
        lease = self.lease
        seen.append(
            (
                key,
                fencing_token,
                lease.token,
                lease.key,
                current_lease() is lease,
                self.request.called_directly,
            )
        )
        return fencing_token

    return sees, seen


CALLS = {
    "a direct call": lambda task: task("k"),
    "apply": lambda task: task.apply(("k",)).get(),
    "delay under always_eager": lambda task: task.delay("k").get(),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_body_has_a_lease_and_the_key_is_free_afterwards(make_app, store, call):
    task, seen = make_task(make_app(task_always_eager=True))
    first, second = CALLS[call](task), CALLS[call](task)

    assert second > first > 0
    assert [(token, own, key, same) for _, token, own, key, same, _ in seen] == [
        (token, token, "job:k", True) for token in (first, second)
    ]
    assert store.holder("job:k") is None


def test_a_direct_call_on_a_held_key_is_contended_and_runs_nothing(app, occupied):
    task, seen = make_task(app)

    with pytest.raises(Contended, match="job:held"):
        task("held")
    assert seen == []


@pytest.mark.parametrize("policy", ["retry", "requeue", "raise"])
def test_an_eager_miss_ends_at_once_with_contended(app, occupied, policy):
    task, seen = make_task(app, miss_policy=policy)
    result = task.apply(("held",))

    assert (result.state, type(result.result)) == ("FAILURE", Contended)
    assert seen == []


def test_an_eager_skip_gives_its_record(app, occupied):
    task, seen = make_task(app, miss_policy="skip")
    result = task.apply(("held",))

    assert is_skipped(result.get())
    assert seen == []


def test_the_callers_own_arguments_are_not_touched(app):
    task, _ = make_task(app)
    arguments = {"key": "k"}
    task.apply(kwargs=arguments)

    assert arguments == {"key": "k"}


def test_a_body_that_raises_frees_the_key_and_its_error_is_kept(app, store):
    @app.task(base=FencedTask, lock_key="job:<key>")
    def fails(key):
        raise KeyError(key)

    with pytest.raises(KeyError, match="mine"):
        fails("mine")
    assert isinstance(fails.apply(("mine",)).result, KeyError)
    assert store.holder("job:mine") is None


def test_a_nested_call_on_the_same_key_shares_the_lease_and_the_outermost_releases_it(app, store):
    tokens, held_after_inner = [], []

    @app.task(base=FencedTask, bind=True, lock_key="job:<key>")
    def nests(self, key, depth, *, fencing_token):
        tokens.append(fencing_token)
        if depth:
            nests(key, depth - 1)
            with hold("job:<key>", {"key": key}, app=self.app) as lease:
                tokens.append(lease.token)
            held_after_inner.append(store.holder("job:" + key) is not None)

    nests.apply(("n", 2))

    assert len(set(tokens)) == 1
    assert len(tokens) == 5
    assert held_after_inner == [True, True]
    assert store.holder("job:n") is None


def test_a_nested_call_on_another_key_has_a_lease_of_its_own(app):
    @app.task(base=FencedTask, bind=True, lock_key="job:<key>")
    def nests(self, key, inner=None, *, fencing_token):
        own = fencing_token
        below = nests(inner) if inner else None
        assert (current_lease().token, self.lease.token) == (own, own)
        return [own, below]

    own, (inner, _) = nests.apply(("outer", "inner")).get()

    assert inner != own


def test_a_body_of_a_plain_task_in_a_fenced_one_has_no_token_injected(app):
    @app.task
    def plain(**kwargs):
        return kwargs

    @app.task(base=FencedTask, lock_key="job:<key>")
    def outer(key, *, fencing_token):
        return plain(inner=key)

    assert outer.apply(("k",)).get() == {"inner": "k"}


def test_a_body_without_a_lock_key_in_an_app_wide_base_is_not_fenced(server):
    app = App("default-base", task_cls=FencedTask, set_as_current=False, backend="cache+memory://")
    app.conf.update(fence_url=server.url)

    @app.task
    def unfenced():
        return current_lease()

    assert unfenced.apply().get() is None
    app.close()


def test_a_caller_may_not_pass_the_token(app):
    task, seen = make_task(app)

    with pytest.raises(TypeError, match="fencing_token"):
        task.apply_async(("k",), {"fencing_token": 5})
    with pytest.raises(TypeError, match="fencing_token"):
        task.delay("k", fencing_token=5)
    assert seen == []


def test_celery_still_checks_everything_else_at_publish(app):
    task, _ = make_task(app)

    with pytest.raises(TypeError, match="unexpected"):
        task.delay("k", unexpected=1)
    with pytest.raises(TypeError, match="key"):
        task.delay()


def test_two_apps_in_one_process_keep_their_leases_apart(make_app, server):
    first, second = make_app(0), make_app(3)
    (task_one, _), (task_two, _) = make_task(first), make_task(second)
    from_one, from_two = from_url(server.url_of(0)), from_url(server.url_of(3))
    from_one.acquire(Claim("job:k", "somebody else", 60.0))

    with pytest.raises(Contended):
        task_one("k")
    assert task_two("k") > 0
    assert from_two.holder("job:k") is None
    from_one.force_release("job:k")


def test_100_runs_leave_no_thread_and_no_connection_behind(make_app, server):
    app, onlooker = make_app(), redis.Redis.from_url(server.url)
    task, _ = make_task(app)
    task("k")
    threads, connections = threading.active_count(), onlooker.info("clients")["connected_clients"]
    for _ in range(100):
        task("k")

    assert threading.active_count() <= threads
    assert onlooker.info("clients")["connected_clients"] <= connections
    onlooker.close()
