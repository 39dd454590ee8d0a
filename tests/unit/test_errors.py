"""Errors travel: by pickle with all they know, through JSON result backends with their message."""

from __future__ import annotations

import pickle
import uuid

import pytest
from celery import Celery

from celery_fence import errors
from celery_fence.errors import (
    AlreadyDone,
    ClaimMismatch,
    ConfigError,
    Contended,
    DeadLettered,
    FenceError,
    LeaseLost,
    LockKeyError,
    MalformedStamp,
    ScopeMismatch,
    StaleToken,
    StoreUnavailable,
    UnfencedWrite,
    UnstorableResult,
)
from celery_fence.locking.store import Facts, Holder

HOLDER = Holder("job:1", "owner", 7, 3.5, facts=Facts("app.sync", "id-1"))
ERRORS = [
    FenceError("plain"),
    ConfigError("wrong"),
    StoreUnavailable("away"),
    LockKeyError("no key", template="a:<b>", field="b", task="app.sync"),
    Contended("held", key="job:1", holder=HOLDER, waited=2.5),
    DeadLettered("given up", key="job:1", reason="max_wait", queue="dead"),
    LeaseLost("lost", key="job:1", token=7, reason="taken"),
    StaleToken("stale", scope="job:1", token=6, seen=7),
    AlreadyDone("done", scope="job:1", token=7, record="payment:1", has_result=True, result=[1]),
    ClaimMismatch("another lock key", record="payment:1", key="job:1", claimed_under="job:2"),
    ScopeMismatch("another key", scope="job:1", key="job:2"),
    UnfencedWrite("no token"),
    MalformedStamp("no number"),
    UnstorableResult("too large", record="job:1"),
]
named = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


@named
def test_pickle_keeps_everything(error):
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert (copy.args, vars(copy)) == (error.args, vars(error))


@named
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_result_backend_gives_back_the_same_kind_and_message(error, serializer):
    app = Celery("errors", set_as_current=False, backend="cache+memory://")
    app.conf.update(result_serializer=serializer, accept_content=["json", "pickle"])
    task_id = uuid.uuid4().hex
    app.backend.store_result(task_id, error, "FAILURE")
    copy = app.AsyncResult(task_id).result

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    app.close()


def test_all_of_them_are_here_and_are_fence_errors():
    defined = {
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)
    }

    assert defined == {type(error) for error in ERRORS}
    assert all(issubclass(each, FenceError) for each in defined)
