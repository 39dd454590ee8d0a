"""Users' own task classes: ordinary inheritance works in either order, and the request is a plain task's."""

from __future__ import annotations

import json

import pytest
from bench.app import App
from celery import Task

from celery_fence import FencedTask, current_lease
from celery_fence.stores import from_url
from celery_fence.testing.servers import embedded_server


@pytest.fixture(scope="module")
def server():
    with embedded_server() as server:
        yield server


@pytest.fixture
def app(server):
    app = App("inheritance", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.update(fence_url=server.url, fence_ttl=30.0)
    yield app
    app.close()


class Traced(Task):
    """A task class as users write them: it wraps the call and hooks in before and after."""

    def __init__(self):
        self.trail = []

    def before_start(self, task_id, args, kwargs):
        self.trail.append("before_start")
        super().before_start(task_id, args, kwargs)

    def __call__(self, *args, **kwargs):
        self.trail.append("call")
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self.trail.append("called")

    def on_success(self, retval, task_id, args, kwargs):
        self.trail.append(("success", sorted(kwargs)))

    def after_return(self, status, retval, task_id, args, kwargs, einfo):  # noqa: PLR0917 - Celery's hook
        self.trail.append(("after", status, sorted(kwargs)))


class UserFirst(Traced, FencedTask):
    pass


class FenceFirst(FencedTask, Traced):
    pass


BASES = [UserFirst, FenceFirst]


@pytest.mark.parametrize("base", BASES)
def test_the_users_hooks_run_around_a_fenced_body(app, server, base):
    @app.task(base=base, bind=True, lock_key="job:<key>")
    def body(self, key, *, fencing_token):
        self.trail.append("body")
        return (fencing_token, self.lease.token, current_lease().token)

    tokens = body.apply(kwargs={"key": "k"}).get()

    assert len(set(tokens)) == 1
    assert body.trail == [
        "before_start",
        "call",
        "body",
        "called",
        ("success", ["key"]),
        ("after", "SUCCESS", ["key"]),
    ]
    assert from_url(server.url).holder("job:k") is None


@pytest.mark.parametrize("base", BASES)
def test_a_direct_call_goes_through_the_users_call_too(app, base):
    @app.task(base=base, lock_key="job:<key>")
    def body(key, *, fencing_token):
        return fencing_token

    assert body("k") > 0
    assert body.trail == ["call", "called"]


@pytest.mark.parametrize("base", BASES)
def test_a_failing_hook_of_the_user_leaves_no_lease(app, server, base):
    class Failing(base):
        def before_start(self, task_id, args, kwargs):
            super().before_start(task_id, args, kwargs)
            raise RuntimeError("the user's hook")

    @app.task(base=Failing, lock_key="job:<key>")
    def body(key):
        return key

    result = body.apply(("k",))

    assert (result.state, str(result.result)) == ("FAILURE", "the user's hook")
    assert from_url(server.url).holder("job:k") is None


def test_a_class_with_its_own_run_is_fenced(app):
    class Job(FencedTask):
        name = "class-based"
        lock_key = "job:<key>"

        def run(self, key, *, fencing_token):
            return [key, fencing_token == self.lease.token]

    job = app.register_task(Job())

    assert job.apply(("k",)).get() == ["k", True]


def test_options_may_come_from_a_base_class(app, server):
    class Base(FencedTask):
        abstract = True
        lock_ttl = 7.0
        lock_key = "base:<key>"
        miss_policy = "skip"
        notes_of_the_users_own = "kept"

    store = from_url(server.url)

    @app.task(base=Base)
    def body(key):
        holder = store.holder(f"base:{key}")
        return round(holder.ttl_left)

    assert body.apply(("k",)).get() == 7
    assert body.notes_of_the_users_own == "kept"


FIELDS = (
    "id",
    "args",
    "kwargs",
    "retries",
    "is_eager",
    "called_directly",
    "headers",
    "group",
    "chord",
    "root_id",
    "parent_id",
    "errbacks",
)


@pytest.mark.parametrize("how", ["apply", "direct"])
def test_the_body_sees_the_request_of_a_plain_task(app, how):
    def body(self, key):
        return {name: getattr(self.request, name, "-") for name in FIELDS}

    plain = app.task(bind=True, name="plain")(body)
    fenced = app.task(bind=True, name="fenced", base=FencedTask, lock_key="job:<key>")(body)

    def seen(task):
        return task("k") if how == "direct" else task.apply(("k",), task_id="the-id").get()

    plains, fences = seen(plain), seen(fenced)
    assert {**fences, "headers": None} == {**plains, "headers": None}
    assert without_ours(fences["headers"]) == (plains["headers"] or {})


def without_ours(headers):
    return {name: value for name, value in (headers or {}).items() if not name.startswith("fence")}


def test_a_body_can_send_its_headers_on(app):
    """People hand the headers of a request to the next task; ours must travel too, or not be there."""

    @app.task(bind=True, base=FencedTask, lock_key="job:<key>")
    def body(self, key):
        return json.dumps(self.request.headers)

    result = body.apply(("k",))

    assert result.state == "SUCCESS", result.result


def test_autoretry_of_everything_never_catches_contended(app, server):
    from celery_fence.locking.store import Claim

    store = from_url(server.url)
    store.acquire(Claim("job:held", "somebody else", 60.0))

    @app.task(
        base=FencedTask,
        bind=True,
        lock_key="job:<key>",
        miss_policy="raise",
        autoretry_for=(Exception,),
        max_retries=3,
    )
    def body(self, key):
        return key

    result = body.apply(("held",))
    store.force_release("job:held")

    assert (result.state, type(result.result).__name__) == ("FAILURE", "Contended")
