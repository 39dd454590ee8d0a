"""The parts of the rig that a wrong verdict would come from."""

from __future__ import annotations

import os
import threading
import time

import pytest
from rig.history import History
from rig.holders import Holders
from rig.hooks import fork_and_vanish, hold_gil, kill_heartbeat
from rig.ledger import Effect, Ledger, StaleWrite
from rig.plan import make_plan
from rig.round import Round, play
from rig.transit import Transit

from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim
from celery_fence.stores.memory import MemoryStore

# --- the ledger ------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    made.create(("a", "b"))
    return made


def effect(token, owner="me", key="a", name="e"):
    return Effect(key, token, owner, "task", "run", name)


def test_a_write_below_the_mark_is_refused_counted_and_changes_nothing(ledger):
    ledger.write(effect(5))
    with pytest.raises(StaleWrite) as refused:
        ledger.write(effect(4))
    ledger.write(effect(5))

    assert (refused.value.token, refused.value.seen) == (4, 5)
    assert ledger.refused() == 1


def test_an_equal_token_of_another_owner_is_refused(ledger):
    ledger.write(effect(5, "me"))
    with pytest.raises(StaleWrite):
        ledger.write(effect(5, "you"))


def test_tokens_compare_within_one_key(ledger):
    ledger.write(effect(5, key="a"))
    ledger.write(effect(4, key="b"))

    assert ledger.refused() == 0


def test_a_ledger_without_its_guard_lets_a_stale_write_in(ledger, monkeypatch):
    """It is how the negative control works."""
    monkeypatch.setattr(Ledger, "guarded", False)
    ledger.write(effect(5))
    ledger.write(effect(4))

    assert ledger.refused() == 0


# --- a round that breaks ---------------------------------------------------------------------------


def test_a_round_that_breaks_says_how_to_play_it_again(tmp_path, monkeypatch):
    def breaks(self):
        raise TimeoutError("not every worker was ready")

    monkeypatch.setattr(Round, "play", breaks)
    with pytest.raises(TimeoutError) as broken:
        play(make_plan(12, ["F2", "F6"], 45.0), tmp_path)

    assert "make chaos SEED=12 FAULTS=F2+F6 SECONDS=45" in broken.value.__notes__[0]
    assert str(tmp_path) in broken.value.__notes__[0]


# --- who holds what --------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path):
    return History(tmp_path, "worker:w1")


def note_call(history, question, owner, answer, call):
    history.note("ask", call=call, question=question, items=[{"key": "a", "owner": owner}])
    history.note("answer", call=call, items=[{"answer": answer}])


def test_a_process_holds_what_it_was_granted_until_it_asks_for_the_release(tmp_path, history):
    holders = Holders(tmp_path)
    note_call(history, "acquire", "o1", "granted", "1")
    note_call(history, "acquire", "o2", "held", "2")
    holders.look()
    held = holders.of(os.getpid())
    note_call(history, "release", "o1", "released", "3")
    holders.look()

    assert held == ["o1"]
    assert holders.pids() == []


def test_a_lost_lease_is_held_by_nobody(tmp_path, history):
    holders = Holders(tmp_path)
    note_call(history, "acquire", "o1", "granted", "1")
    history.note("lost", owner="o1", key="a", token=1, reason="expired")
    holders.look()

    assert holders.pids() == []


# --- what the broker lost --------------------------------------------------------------------------


def travel(history, task_id, *, sent, received):
    history.note("published", task_id=task_id, copies=1)
    for _ in range(sent):
        history.note("sent", task_id=task_id)
    for tag in received:
        history.note("received", task_id=task_id, tag=tag, redelivered=False)


def killed(history, detail):
    history.note("fault", fault="F1", detail=detail, phase="begin", id=1)


def test_a_publish_that_nobody_received_was_lost_by_the_broker_when_a_worker_was_killed(tmp_path, history):
    travel(history, "lost", sent=1, received=["tag 1", "tag 1"])
    travel(history, "here", sent=1, received=["tag 2", "tag 3"])
    killed(history, "worker w1")

    assert Transit(tmp_path).lost(["lost", "here"]) == ["lost"]


def test_what_was_put_back_and_not_received_again_was_lost_by_the_broker(tmp_path, history):
    for task_id in ("lost", "here"):
        travel(history, task_id, sent=0, received=["tag 1"])
        history.note("restored", task_id=task_id, tag="tag 1")
    history.note("received", task_id="here", tag="tag 1", redelivered=True)
    killed(history, "worker w1")

    assert Transit(tmp_path).lost(["lost", "here"]) == ["lost"]


def test_without_a_killed_worker_the_broker_has_lost_nothing(tmp_path, history):
    travel(history, "lost", sent=1, received=["tag 1"])
    killed(history, "child")

    assert Transit(tmp_path).lost(["lost"]) == []


# --- what a body does to its process ---------------------------------------------------------------


@pytest.fixture
def lease():
    store = MemoryStore("rig")
    locker = Locker(store, store, lambda event: None)
    taken = locker.acquire(Claim("a", "me", 6.0), source="test", terms=Terms(), into=lambda lease: None)
    yield taken
    locker.release(taken)


def soon(fact):
    deadline = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return True


def test_an_exit_is_thrown_into_the_heartbeat_and_the_lease_is_still_renewed(lease, caplog):
    assert soon(kill_heartbeat)
    assert soon(lambda: "stumbled" in caplog.text or not process_heartbeat().running)
    until = lease.trusted_until

    assert soon(lambda: lease.trusted_until > until)


def test_a_held_interpreter_lets_no_other_thread_run():
    ticks, over = [], threading.Event()

    def tick():
        while not over.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    hold_gil(0.3)
    ended = time.monotonic()
    over.set()
    thread.join()

    assert not [moment for moment in ticks if began + 0.05 < moment < ended - 0.05]


def test_a_fork_that_vanishes_is_gone_and_collected(monkeypatch):
    children, fork = [], os.fork

    def noted_fork():
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", noted_fork)
    fork_and_vanish()

    with pytest.raises(ChildProcessError):
        os.waitpid(children[0], os.WNOHANG)
