"""Work whose result can't be kept, or read, is done once all the same."""

from __future__ import annotations

import pickle

import pytest

from celery_fence.errors import AlreadyDone, StoreUnavailable
from celery_fence.locking.store import Claim, Ending
from celery_fence.stores.memory import MemoryStore
from celery_fence.task.endings import LARGEST_RESULT
from celery_fence.task.skip import Skipped
from tests.unit.records.bodies import raises


class TestAResultThatCanTBeKept:
    @pytest.mark.parametrize(
        ("result", "why"), [("x" * LARGEST_RESULT, f"{LARGEST_RESULT} is the limit"), (object(), "encoded")]
    )
    def test_is_told_at_once_and_its_work_isn_t_done_again(self, charge, in_worker, caplog, result, why):
        task = charge(lambda self: result)
        in_worker(task, 7, 1)

        (line,) = [record for record in caplog.records if why in record.getMessage()]
        assert (line.levelname, "'order:1'" in line.getMessage()) == ("ERROR", True)

        error = in_worker(task, 7, 1).value
        assert isinstance(error, AlreadyDone)
        assert (error.record, error.has_result) == ("order:1", False)
        assert "such as an id" in str(error)
        assert len(charge.runs) == 1

    def test_is_the_first_message_s_result_all_the_same(self, charge, in_worker, stored):
        result = "x" * LARGEST_RESULT
        in_worker(charge(lambda self: result), 7, 1, id="first")

        assert stored("first") == ("SUCCESS", result)

    def test_is_no_failure_where_nobody_waits_for_it(self, charge, in_worker, skips):
        task = charge(lambda self: "x" * LARGEST_RESULT, ignore_result=True)
        in_worker(task, 7, 1)

        assert isinstance(in_worker(task, 7, 1).value, Skipped)
        assert [facts["reason"] for _, facts in skips] == ["already_done"]

    def test_the_largest_one_is_kept(self, charge, in_worker, leases):
        head = len(b"application/json;utf-8\n") + 2
        in_worker(charge(lambda self: "x" * (LARGEST_RESULT - head)), 7, 1)

        assert leases.record("order:1").size == LARGEST_RESULT

    def test_and_can_t_be_read_is_a_failure_that_says_so(self, app, charge, in_worker, leases):
        claim = Claim("tenant:7", "o", 60.0, record="order:1")
        leases.release(
            claim, leases.acquire(claim).token, Ending("returned", result=b"application/json;utf-8\n{")
        )

        error = in_worker(charge(), 7, 1).value
        assert isinstance(error, AlreadyDone)
        assert "can't be read" in str(error)

    def test_and_isn_t_accepted_by_the_app_is_not_decoded(self, app, charge, in_worker, leases):
        """Who can write to the store must not have the worker unpickle it."""
        bomb = b"application/x-python-serialize;binary\n" + pickle.dumps(pytest.fail)
        leases.acquire(Claim("tenant:7", "o", 60.0, record="order:1"))
        leases.release(Claim("tenant:7", "o", 60.0, record="order:1"), 0, Ending("returned", result=bomb))
        error = in_worker(charge(), 7, 1).value

        assert isinstance(error, AlreadyDone)
        assert "can't be read" in str(error)

    def test_because_the_store_is_gone_is_told_at_once(self, charge, in_worker, monkeypatch, caplog):
        monkeypatch.setattr(MemoryStore, "release", lambda *_: raises(StoreUnavailable("away")))
        in_worker(charge(), 7, 1)

        text = "'order:1' is done, but its record couldn't be written yet, and is tried again"
        told = [record.levelname for record in caplog.records if text in record.getMessage()]
        assert told == ["WARNING"]
