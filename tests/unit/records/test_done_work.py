"""Work that was done is answered from its record."""

from __future__ import annotations

import logging
import uuid

import pytest

from celery_fence import Contended, FencedTask
from celery_fence.locking.locker import Locker
from celery_fence.task.notes import Notes
from celery_fence.task.skip import Skipped
from tests.unit.records.bodies import given_back

DELIVERED = {"fence": Notes(delivery="d").header()}


class TestWorkThatWasDone:
    def test_isn_t_done_again_and_its_result_is_this_messages_too(self, charge, in_worker, stored):
        task, second = charge(), uuid.uuid4().hex
        first = in_worker(task, 7, 1)

        outcome = in_worker(task, 7, 1, id=second)

        assert first.value == {"charged": 5}
        assert isinstance(outcome.value, Skipped)
        assert stored(second) == ("SUCCESS", {"charged": 5})
        assert len(charge.runs) == 1

    def test_says_so_in_its_event_and_in_the_log(self, charge, in_worker, skips, caplog):
        task = charge()
        in_worker(task, 7, 1)
        caplog.set_level(logging.INFO, "celery_fence")
        skipped = in_worker(task, 7, 1, id="the second").value

        (told,) = skips
        assert told[0] == "charge"
        assert (told[1]["reason"], told[1]["record"], told[1]["task_id"], told[1]["key"]) == (
            "already_done",
            {"charged": 5},
            "the second",
            "tenant:7",
        )
        assert skipped.reason == "already_done: order:1"
        (line,) = [record for record in caplog.records if "done before" in record.getMessage()]
        assert (line.levelname, line.task_id) == ("INFO", "the second")

    def test_is_known_by_its_idempotency_key_however_the_call_is_written(self, charge, in_worker):
        task = charge()
        in_worker(task, 7, 1)
        for args, kwargs in [((7,), {"order": 1}), ((), {"tenant": 7, "order": "1"})]:
            in_worker(task, *args, kwargs=kwargs)

        assert len(charge.runs) == 1

    def test_of_another_key_is_done(self, charge, in_worker):
        """I03: one key for the lock, one for the record."""
        task = charge()
        for order in (1, 2, 1):
            in_worker(task, 7, order)

        assert [key for _, key in charge.runs] == ["order:1", "order:2"]

    def test_is_answered_while_other_work_has_the_lock_key(self, charge, in_worker, occupy, stored):
        task = charge(miss_policy="raise")
        in_worker(task, 7, 1)
        occupy("tenant:7")
        in_worker(task, 7, 1, id="again")

        assert stored("again") == ("SUCCESS", {"charged": 5})
        assert isinstance(in_worker(task, 7, 2).value, Contended)

    def test_in_another_task_with_the_same_key_is_done(self, charge, in_worker):
        in_worker(charge(), 7, 1)
        in_worker(charge(name="another"), 7, 1)

        assert len(charge.runs) == 1

    @pytest.mark.parametrize("result", [None, False, 0, "", [], {"celery_fence": "skipped"}, "größe", 1.5])
    def test_has_the_same_result_whatever_it_is(self, charge, in_worker, stored, result):
        task = charge(lambda self: result)
        for task_id in ("first", "again"):
            in_worker(task, 7, 1, id=task_id)

        assert stored("again") == ("SUCCESS", result)

    def test_keeps_its_type_with_the_serializer_of_results(self, app, charge, in_worker, stored):
        app.conf.update(result_serializer="pickle", accept_content=["json", "pickle"])
        task = charge(lambda self: {1, 2})
        for task_id in ("first", "again"):
            in_worker(task, 7, 1, id=task_id)

        assert stored("again") == ("SUCCESS", {1, 2})

    def test_costs_the_path_no_note(self, charge, in_worker, monkeypatch):
        """The record remembers it until its epilogue is noted, in the background."""
        noted = []
        monkeypatch.setattr(Locker, "note_now", lambda self, note: noted.append(note))
        task = charge()
        for _ in range(2):
            in_worker(task, 7, 1, headers=DELIVERED)

        assert noted == []
        assert len(charge.runs) == 1

    def test_is_remembered_no_longer_than_the_setting_says(self, app, charge, in_worker, leases):
        app.conf.fence_record_retention = 3000
        in_worker(charge(), 7, 1)

        assert 2900 < leases.record("order:1").left <= 3000

    def test_is_done_again_once_its_record_was_deleted(self, charge, in_worker, leases):
        task = charge()
        in_worker(task, 7, 1)
        leases.delete_record("order:1")
        in_worker(task, 7, 1)

        assert len(charge.runs) == 2

    def test_runs_no_success_hook_for_the_message_that_is_answered(self, charge, in_worker):
        calls = []

        class Told(FencedTask):
            abstract = True

            def on_success(self, retval, task_id, args, kwargs):
                calls.append(task_id)

        task = charge(base=Told)
        for task_id in ("first", "again"):
            in_worker(task, 7, 1, id=task_id)

        assert calls == ["first"]

    def test_sends_links_and_the_next_step_of_the_chain_with_its_result(self, app, charge, in_worker, sent):
        task = charge()
        in_worker(task, 7, 1)
        after = app.task(name="after")(given_back)
        link, step = after.s().set(task_id="link"), after.s().set(task_id="step")
        in_worker(task, 7, 1, callbacks=[dict(link)], chain=[dict(step)])

        assert {headers["id"]: body[0] for headers, body in sent} == {
            "link": ({"charged": 5},),
            "step": ({"charged": 5},),
        }
