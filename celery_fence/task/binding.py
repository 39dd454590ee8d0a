"""What happens to a task class when it is bound to its app."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from celery.exceptions import Ignore
from celery.utils.imports import symbol_by_name

from celery_fence.errors import AlreadyDone, ConfigError, Contended, DeadLettered, LeaseLost, StaleToken
from celery_fence.locking import current
from celery_fence.task.checks import check_task
from celery_fence.task.install import install, stamp_deliveries_of
from celery_fence.task.options import resolve
from celery_fence.task.request import FencedRequest
from celery_fence.task.settings import FenceSettings
from celery_fence.task.written import run_of

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F")

NEVER_AUTORETRIED = (LeaseLost, Contended, DeadLettered, StaleToken, AlreadyDone)


class PastAutoretry(Ignore, Exception):
    """Carries one of our errors past ``autoretry_for=(Exception,)``, which lets Celery's `Ignore` through."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def bind_task(cls: Any, app: Any) -> None:
    """Check a task class and prepare it; Celery binds each class twice, and doing it again changes nothing."""
    _check(cls, app)
    install(app)
    if cls.name:
        stamp_deliveries_of(cls.name)
    cls.Request = with_our_request(cls.Request)
    cls.throws = tuple(dict.fromkeys((*cls.throws, Contended, DeadLettered)))
    fence_the_outermost_call(cls)
    if getattr(cls, "autoretry_for", None):
        stays_out_of_autoretry(cls)
    dont_ask_for_the_token(cls, app)


def _check(cls: Any, app: Any) -> None:
    """Raise what is wrong, in the shape that suits who reads it: a client's traceback, or a command's last words."""
    try:
        check_task(cls, app)
    except ConfigError as error:
        from celery_fence.task import command_line  # click is for commands; a client needn't load it

        if not command_line.is_running():
            raise
        raise command_line.WrongSettings(str(error)) from error


def fences(call: F) -> F:
    """Mark a `__call__` that takes care of the lease itself."""
    call.fences = True  # type: ignore[attr-defined]
    return call


def fence_the_outermost_call(cls: Any) -> None:
    """
    Put the `__call__` of a base class under the lease, as a whole.

    What it does after the body, such as a commit, belongs to the run: the key must
    not be free before, nor the run be remembered as returned.
    """
    call = cls.__call__
    if getattr(call, "fences", False):
        return

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it becomes the class's
        return self._call_fenced(functools.partial(call, self), args, kwargs, ours=False)

    cls.__call__ = fences(__call__)


def with_our_request(request: Any) -> Any:
    """A request class that is ours and also what the user's task asked for."""
    theirs = symbol_by_name(request)
    if issubclass(theirs, FencedRequest):
        return request
    return type(f"Fenced{theirs.__name__}", (FencedRequest, theirs), {})


def stays_out_of_autoretry(cls: Any) -> None:
    """Wrap the body so that our errors pass Celery's autoretry, which wraps it once more after this."""
    run = inspect.getattr_static(cls, "run")
    function = run.__func__ if isinstance(run, staticmethod) else run
    if getattr(function, "passes_autoretry", False):
        return
    wrapped = _passing(function)
    cls.run = staticmethod(wrapped) if isinstance(run, staticmethod) else wrapped


def _passing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except NEVER_AUTORETRIED as error:
            if current.frames():
                raise PastAutoretry(error) from error
            raise

    run.passes_autoretry = True  # type: ignore[attr-defined]
    return run


def dont_ask_for_the_token(cls: Any, app: Any) -> None:
    """
    Let Celery's check of the arguments at publish leave out the injected one.

    A caller doesn't give it, and one who does is refused; all else is checked as before.
    """
    header = cls.__dict__.get("__header__")
    keyword = _injected_into(cls, app)
    if header is None or keyword is None:
        return
    checker = _checker(inspect.signature(run_of(cls)), keyword, cls.name)
    of_bound_task = isinstance(header, functools.partial)  # Celery tells them apart by that
    cls.__header__ = functools.partial(checker) if of_bound_task else staticmethod(checker)


def _injected_into(cls: Any, app: Any) -> str | None:
    """The keyword if the function names it as a parameter."""
    if not cls.__dict__.get("_decorated"):
        return None
    keyword = resolve(cls, FenceSettings.of(app), app).inject_as
    named = keyword in inspect.signature(run_of(cls)).parameters
    return keyword if named else None


def _checker(signature: inspect.Signature, keyword: str, task: str) -> Callable[..., None]:
    asked = signature.replace(
        parameters=[each for each in signature.parameters.values() if each.name != keyword]
    )

    def check(*args: Any, **kwargs: Any) -> None:
        if keyword in kwargs:
            msg = f"{task}() gets {keyword!r} from celery-fence when it runs; don't pass it."
            raise TypeError(msg)
        try:
            asked.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{task}(): {error}") from error

    check.__signature__ = asked  # type: ignore[attr-defined]
    return check
