"""What binding does to a task class: the check at publish, autoretry, the request class, users' own bases."""

from __future__ import annotations

import pickle
from contextlib import nullcontext

import click
import pytest
from celery import Task, shared_task
from celery.exceptions import Reject
from celery.worker.request import Request
from pydantic import BaseModel

from celery_fence import ConfigError, Contended, DeadLettered, FencedTask, LeaseLost, current_lease
from celery_fence.task.request import FencedRequest


class Tenant(BaseModel):
    id: int


def plain(app):
    @app.task(base=FencedTask, lock_key="t:<tenant_id>", name="plain")
    def task(tenant_id, full=False, *, fencing_token): ...

    return task


def bound(app):
    @app.task(base=FencedTask, bind=True, lock_key="t:<tenant_id>", name="bound")
    def task(self, tenant_id, full=False, *, fencing_token): ...

    return task


def positional(app):
    @app.task(base=FencedTask, lock_key="t:<tenant_id>", name="positional")
    def task(tenant_id, full=False, fencing_token=None): ...

    return task


def autoretried(app):
    @app.task(base=FencedTask, lock_key="t:<tenant_id>", autoretry_for=(Exception,), name="autoretried")
    def task(tenant_id, full=False, *, fencing_token): ...

    return task


def renamed(app):
    @app.task(base=FencedTask, lock_key="t:<tenant_id>", inject_as="token", name="renamed")
    def task(tenant_id, full=False, *, token): ...

    return task


def shared(app):
    @shared_task(base=FencedTask, lock_key="t:<tenant_id>", name=f"shared-{app.main}")
    def task(tenant_id, full=False, *, fencing_token): ...

    app.finalize()
    return app.tasks[f"shared-{app.main}"]


KINDS = [plain, bound, positional, autoretried, renamed, shared]
kinds = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)


@kinds
@pytest.mark.parametrize(
    "args, kwargs", [((7,), {}), ((7, True), {}), ((), {"tenant_id": 7}), ((7,), {"full": True})]
)
def test_a_call_without_the_token_is_published(app, sent, make, args, kwargs):
    make(app).apply_async(args, kwargs)

    ((_, body),) = sent
    assert (tuple(body[0]), body[1]) == (args, kwargs)


@kinds
@pytest.mark.parametrize(
    "args, kwargs, names",
    [
        ((), {}, "tenant_id"),
        ((7,), {"fulll": True}, "fulll"),
        ((7, True, 5), {}, "too many positional"),
        ((7,), {"tenant_id": 8}, "tenant_id"),
    ],
)
def test_everything_else_is_checked_as_ever(app, sent, make, args, kwargs, names):  # noqa: PLR0917 - fixtures
    task = make(app)

    with pytest.raises(TypeError, match=names) as caught:
        task.apply_async(args, kwargs)
    assert str(caught.value).startswith(f"{task.name}(): ")
    assert sent == []


@kinds
def test_a_caller_who_passes_the_token_is_refused(app, sent, make):
    task = make(app)
    keyword = "token" if make is renamed else "fencing_token"

    with pytest.raises(TypeError, match=f"'{keyword}' from celery-fence"):
        task.delay(7, **{keyword: 5})
    assert sent == []


@kinds
def test_the_signature_that_is_sent_is_the_one_that_runs(app, make):
    assert make(app).apply((7,)).state == "SUCCESS"


def test_a_pydantic_task_gets_its_model_and_its_token(app, sent, in_worker):
    def function(tenant, *, fencing_token):
        return [type(tenant).__name__, fencing_token > 0]

    # The class itself: before 5.6, Celery can't look up its name.
    function.__annotations__ = {"tenant": Tenant}
    task = app.task(base=FencedTask, pydantic=True, lock_key="t:<tenant[id]>", name="pydantic")(function)

    task.delay({"id": 7})

    assert len(sent) == 1
    assert in_worker(task, {"id": 7}).value == ["Tenant", True]


def test_a_class_based_task_is_fenced(app, in_worker, leases):
    class Sync(FencedTask):
        name = "class-based"
        lock_key = "t:<tenant_id>"

        def run(self, tenant_id, *, fencing_token):
            return [fencing_token == self.lease.token, leases.holder("t:7").token == fencing_token]

    task = app.register_task(Sync())
    task.delay(7)

    assert in_worker(task, 7).value == [True, True]


def test_without_typing_celery_checks_nothing_and_neither_do_we(app, sent):
    @app.task(base=FencedTask, typing=False, lock_key="global", name="untyped")
    def task(tenant_id, *, fencing_token): ...

    task.apply_async((), {"anything": 1})

    assert len(sent) == 1


def test_binding_again_changes_nothing(app, sent):
    task = plain(app)
    task.delay(7)
    cls = task.__class__  # type() of Celery's proxy is the proxy's
    before = (cls.Request, cls.throws)
    cls.bind(app)

    assert (cls.Request, cls.throws) == before
    task.delay(7)
    assert len(sent) == 2
    with pytest.raises(TypeError, match="don't pass it"):
        task.delay(7, fencing_token=5)


def test_a_fenced_task_can_be_pickled(app):
    task = plain(app)
    app.set_current()

    assert pickle.loads(pickle.dumps(task.s(7))) == task.s(7)


class TestAutoretry:
    """``autoretry_for=(Exception,)`` is for the errors of the body, never for ours."""

    ERRORS = (LeaseLost("lost"), Contended("held", key="k"), DeadLettered("given up"))

    @pytest.fixture
    def raises(self, app):
        def raises(error, **options):
            runs = []

            @app.task(
                base=FencedTask,
                lock_key="k",
                autoretry_for=(Exception,),
                retry_backoff=False,
                max_retries=3,
                miss_policy="raise",
                lost_policy="raise",
                name=f"raises {type(error).__name__}",
                **options,
            )
            def task():
                runs.append(1)
                raise error

            return task, runs

        return raises

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    def test_never_catches_ours(self, raises, in_worker, error):
        task, runs = raises(error)
        outcome = in_worker(task)

        assert outcome.state == "FAILURE"
        assert type(outcome.value) is type(error)
        assert runs == [1]

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    def test_never_catches_ours_in_a_direct_or_eager_call(self, raises, error):
        task, runs = raises(error)
        with pytest.raises(type(error)):
            task()
        with pytest.raises(type(error)):
            task.apply(throw=True)

        assert runs == [1, 1]

    def test_catches_the_errors_of_the_body(self, raises, in_worker, sent, leases):
        task, _ = raises(ValueError("the body's"))
        outcome = in_worker(task)

        assert outcome.state == "RETRY"
        assert [headers["retries"] for headers, _ in sent] == [1]
        assert leases.holder("k") is None

    def test_sees_the_signature_of_the_function(self, app):
        task = autoretried(app)
        assert task.apply((7,)).state == "SUCCESS"
        with pytest.raises(TypeError):
            task.delay()


class TheirRequest(Request):
    theirs = True


class Both(FencedRequest):
    both = True


class TestTheRequestClass:
    @pytest.mark.parametrize("given", [TheirRequest, f"{__name__}:TheirRequest"])
    def test_of_the_user_is_combined_with_ours(self, app, given, monkeypatch):
        import sys

        monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or __import__(__name__))

        @app.task(base=FencedTask, lock_key="k", Request=given, name=f"their-request-{given}")
        def task(): ...

        made = task.Request
        assert issubclass(made, FencedRequest)
        assert issubclass(made, TheirRequest)
        assert made.__mro__.index(FencedRequest) < made.__mro__.index(TheirRequest)

    def test_that_is_already_ours_is_left_alone(self, app):
        @app.task(base=FencedTask, lock_key="k", Request=Both, name="both")
        def task(): ...

        assert task.Request is Both

    def test_is_ours_where_none_is_given(self, app):
        from celery.utils.imports import symbol_by_name

        assert symbol_by_name(plain(app).Request) is FencedRequest


class TestUsersOwnBases:
    """Ordinary inheritance, in either order."""

    @pytest.fixture(params=["theirs first", "ours first"])
    def together(self, request):
        def together(theirs):
            bases = (theirs, FencedTask) if request.param == "theirs first" else (FencedTask, theirs)
            return type("Together", bases, {"abstract": True})

        return together

    def body_of(self, app, base, name):
        @app.task(base=base, bind=True, lock_key="t:<key>", name=name)
        def body(self, key, *, fencing_token):
            return [fencing_token == self.lease.token == current_lease().token, self.request.retries]

        return body

    @pytest.mark.parametrize("hook", ["__call__", "before_start", "on_bound", "after_return", "on_success"])
    def test_a_hook_that_calls_super_runs_around_a_fenced_body(self, app, together, in_worker, leases, hook):
        trail = []

        class Theirs(Task):
            abstract = True

        def hooked(self, *args, **kwargs):
            trail.append(hook)
            return getattr(super(Theirs, self), hook)(*args, **kwargs)

        def hooked_class(cls, app):
            trail.append(hook)
            super(Theirs, cls).on_bound(app)

        setattr(Theirs, hook, classmethod(hooked_class) if hook == "on_bound" else hooked)
        task = self.body_of(app, together(Theirs), f"hook {hook}")

        assert in_worker(task, "k").value == [True, 0]
        assert trail
        assert leases.holder("t:k") is None

    def test_a_before_start_without_super_only_moves_the_taking_to_the_call(self, app, in_worker, leases):
        class Theirs(Task):
            abstract = True

            def before_start(self, task_id, args, kwargs):
                pass

        task = self.body_of(app, type("Together", (Theirs, FencedTask), {"abstract": True}), "no super")

        assert in_worker(task, "k").value == [True, 0]
        assert leases.holder("t:k") is None

    def test_a_call_around_ours_runs_under_the_lease_as_a_whole(self, app, in_worker, leases):
        """Such as a transaction: its commit is part of the run, and its failure the run's end."""
        seen = []

        class Theirs(Task):
            abstract = True

            def __call__(self, *args, **kwargs):
                value = super().__call__(*args, **kwargs)
                seen.append(leases.holder("t:k") is not None)
                if len(seen) == 1:
                    raise Reject("the commit failed", requeue=True)
                return value

        task = self.body_of(app, type("Together", (Theirs, FencedTask), {"abstract": True}), "around")
        message = {"id": "one", "headers": {"fence": {"delivery": "d"}}}

        assert in_worker(task, "k", **message).state == "REJECTED"
        assert leases.holder("t:k") is None
        assert in_worker(task, "k", **message).state == "SUCCESS"
        assert seen == [True, True]

    def test_a_call_without_super_is_warned_about_and_leaves_no_lease(self, app, in_worker, leases, caplog):
        class Theirs(Task):
            abstract = True

            def __call__(self, *args, **kwargs):
                return "went its own way"

        task = self.body_of(app, type("Together", (Theirs, FencedTask), {"abstract": True}), "own way")

        assert in_worker(task, "k").value == "went its own way"
        assert leases.holder("t:k") is None
        assert "must call super().__call__" in caplog.text

    def test_an_on_bound_without_super_still_runs_under_a_lease(self, app, in_worker, leases):
        class Theirs(Task):
            abstract = True

            @classmethod
            def on_bound(cls, app):
                pass

        task = self.body_of(app, type("Together", (Theirs, FencedTask), {"abstract": True}), "unbound")

        assert in_worker(task, "k").value == [True, 0]
        assert leases.holder("t:k") is None

    def test_a_run_of_the_users_base_is_the_body(self, app, together, in_worker):
        class Theirs(Task):
            abstract = True

            def run(self, key, *, fencing_token):
                return fencing_token == self.lease.token

        together = together(Theirs)
        name = f"own run {together.__mro__[1].__name__}"
        task = app.register_task(type("Concrete", (together,), {"name": name, "lock_key": "t:<key>"})())

        assert in_worker(task, "k").value is True

    def test_a_failing_hook_after_the_lease_was_taken_leaves_none(self, app, in_worker, leases):
        class Theirs(FencedTask):
            abstract = True

            def before_start(self, task_id, args, kwargs):
                super().before_start(task_id, args, kwargs)
                raise RuntimeError("the user's")

        outcome = in_worker(self.body_of(app, Theirs, "failing hook"), "k")

        assert (outcome.state, str(outcome.value)) == ("FAILURE", "the user's")
        assert leases.holder("t:k") is None


def test_the_request_in_the_body_is_that_of_a_plain_task(app, in_worker):
    def facts(self, key):
        request = dict(vars(self.request))
        return {name: repr(value) for name, value in request.items() if name[:5] not in ("fence", "_prot")}

    fenced = app.task(base=FencedTask, bind=True, lock_key="t:<key>", name="fenced facts")(facts)
    other = app.task(bind=True, name="plain facts")(facts)
    given = {"id": "same", "root_id": "root", "group": "g", "headers": {"x": 1}, "timelimit": (9, 8)}

    seen, expected = (in_worker(task, "k", **given).value for task in (fenced, other))
    for each in (seen, expected):
        each.pop("headers")  # ours has a fence
    assert seen == expected


@pytest.mark.parametrize("inside", [True, False])
def test_a_wrong_task_ends_a_command_with_its_message_alone_and_is_a_plain_error_elsewhere(app, inside):
    def work(key): ...

    command = click.Context(click.Command("celery")) if inside else nullcontext()
    with command, pytest.raises(ConfigError) as refused:
        app.task(base=FencedTask, lock_key="t:<nobody>", name="wrong", lazy=False)(work)

    assert "no parameter 'nobody'" in str(refused.value)
    assert isinstance(refused.value, click.ClickException) == inside
    assert (type(refused.value) is ConfigError) != inside
