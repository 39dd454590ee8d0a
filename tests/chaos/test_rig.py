"""The parts of the rig that a wrong verdict would come from."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import redis
from kombu import Connection
from kombu.transport.redis import Channel, QoS
from kombu.utils.json import dumps
from rig import probe
from rig.app import note_what_is_put_back
from rig.history import History, Record, read
from rig.holders import Holders
from rig.hooks import fork_and_vanish, hold_gil, kill_heartbeat
from rig.ledger import Effect, Ledger, StaleWrite
from rig.plan import make_plan
from rig.probe import ask_for_every_key
from rig.round import Round, play
from rig.store_keys import leases_of
from rig.transit import Losses, Transit

from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim
from celery_fence.stores.memory import MemoryStore
from celery_fence.stores.redis.store import RedisStore
from celery_fence.testing.servers import embedded_server

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


# --- what the lease server has ---------------------------------------------------------------------


@pytest.fixture
def world(tmp_path):
    """As much of a world as the driver needs to ask for keys."""
    with embedded_server() as server, redis.Redis.from_url(server.url, decode_responses=True) as client:
        plan = replace(make_plan(1, [], 1.0), ttl=0.5, keys=("free", "held"))
        yield SimpleNamespace(leases=server, client=client, plan=plan, history=History(tmp_path, "driver"))


def test_the_leases_are_seen_with_who_has_them_and_for_how_long(world):
    with closing(RedisStore(world.leases.url)) as store:
        store.acquire(Claim("held", "me", ttl=30.0, lost_delay=10.0))
        store.acquire(Claim("free", "you", ttl=30.0))
        store.release(Claim("free", "you", ttl=30.0), 0)

    (lease,) = leases_of(world.client)
    assert 30.0 < lease.pop("left") <= 40.0
    assert lease == {"key": "held", "owner": "me", "ttl": 30.0, "lost_delay": 10.0}


def test_a_lease_that_ends_while_it_is_looked_at_is_none(world, monkeypatch):
    monkeypatch.setattr(world.client, "scan_iter", lambda *_, **__: ["fence:{b01}:lease:gone"])

    assert leases_of(world.client) == []


def test_the_driver_asks_until_every_key_was_granted_and_leaves_none_behind(world, tmp_path):
    with closing(RedisStore(world.leases.url)) as store:
        store.acquire(Claim("held", "me", ttl=0.5))
    ask_for_every_key(world)

    answers = [record["items"][0]["answer"] for record in read(tmp_path) if record.what == "answer"]
    assert answers[:3] == ["granted", "released", "held"]
    assert answers[-2:] == ["granted", "released"]
    assert [record["refused"] for record in read(tmp_path) if record.what == "probed"] == [{}]
    assert leases_of(world.client) == []


def test_a_key_that_the_driver_is_never_granted_is_noted_with_who_has_it(world, tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "LONGEST", 0.1)
    with closing(RedisStore(world.leases.url)) as store:
        store.acquire(Claim("held", "me", ttl=30.0))
    ask_for_every_key(world)

    assert [record["refused"] for record in read(tmp_path) if record.what == "probed"] == [{"held": "me"}]


# --- what the broker lost --------------------------------------------------------------------------

HERE, THERE = "redis://broker/0", "redis://broker/2"


class Road:
    """Records of messages that are put into a queue and taken; moments are seconds after the first."""

    def __init__(self):
        self.records = []
        for name, broker in (("w1", HERE), ("w2", HERE), ("w3", THERE)):
            self._note("worker", 0.0, name=name, broker=broker)

    def published(self, task_id, at, *, copies=1, broker=HERE):
        self._note("published", at, task_id=task_id, copies=copies, broker=broker)

    def sent(self, task_id, at):
        self._note("sent", at + 0.1, task_id=task_id, began=at)

    def taken(self, task_id, at, tag="tag 1"):
        self._note("taken", at, task_id=task_id, tag=tag)

    def restored(self, task_id, at, tag="tag 1"):
        self._note("restored", at + 0.1, task_id=task_id, tag=tag, began=at)

    def killed(self, at, detail="worker w1"):
        facts = {"fault": "F1", "detail": detail, "id": f"{detail} {at}"}
        self._note("fault", at, phase="begin", **facts)
        self._note("fault", at + 0.1, phase="end", **facts)

    def losses(self):
        transit = Transit()
        transit.read(self.records)
        return transit.losses()

    def _note(self, what, at, **facts):
        self.records.append(Record(what, at, 1, "any", facts))


@pytest.fixture
def road():
    return Road()


def test_what_nobody_took_was_lost_with_the_worker_that_was_killed_meanwhile(road):
    road.published("lost", 1.0)
    road.published("here", 1.0, copies=2)
    for tag in ("tag 1", "tag 2"):
        road.taken("here", 2.0, tag)
    road.killed(3.0)

    assert road.losses() == Losses(["lost"], [])


@pytest.mark.parametrize("copies", [1, 3])
def test_each_copy_and_each_message_sent_again_has_to_be_taken(road, copies):
    road.published("lost", 1.0, copies=copies)
    for number in range(copies):
        road.taken("lost", 2.0, f"tag {number}")
    road.sent("lost", 2.1)
    road.killed(3.0)

    assert road.losses() == Losses(["lost"], [])


def test_what_was_put_back_and_not_taken_again_was_lost(road):
    for task_id in ("lost", "here"):
        road.published(task_id, 1.0)
        road.taken(task_id, 2.0)
        road.restored(task_id, 5.0)
    road.taken("here", 5.2)
    road.killed(6.0)

    assert road.losses() == Losses(["lost"], [])


def test_what_came_back_was_taken_even_if_who_took_it_could_not_say_so(road):
    road.published("here", 1.0)
    road.killed(2.0)
    road.restored("here", 5.0)
    road.taken("here", 5.2)

    assert road.losses() == Losses([], [])


def test_what_came_back_and_was_lost_then_was_lost_once(road):
    road.published("lost", 1.0)
    road.killed(2.0)
    road.restored("lost", 5.0)
    road.killed(6.0)

    assert road.losses() == Losses(["lost"], [])


@pytest.mark.parametrize("strike", [{"at": 3.0, "detail": "child"}, {"at": 3.0, "detail": "worker w3"}, None])
def test_without_a_killed_worker_of_its_broker_what_is_missing_is_a_loss_of_ours(road, strike):
    road.published("gone", 1.0)
    if strike:
        road.killed(**strike)

    assert road.losses() == Losses([], ["gone"])


def test_a_killed_worker_takes_along_one_message_and_no_more(road):
    for task_id in ("a", "b", "c"):
        road.published(task_id, 1.0)
    road.killed(3.0, "worker w1")
    road.killed(4.0, "worker w2")

    losses = road.losses()
    assert (len(losses.explained), len(losses.unexplained)) == (2, 1)


def test_a_worker_takes_along_nothing_that_was_published_after_its_death(road):
    road.killed(3.0)
    road.published("gone", 3.5)

    assert road.losses() == Losses([], ["gone"])


def test_a_worker_takes_along_nothing_that_another_one_had_taken_before_and_was_sent_again_after_its_death(
    road,
):
    road.published("gone", 1.0)
    road.taken("gone", 2.0)
    road.killed(3.0)
    road.sent("gone", 3.5)

    assert road.losses() == Losses([], ["gone"])


def test_a_worker_takes_along_nothing_that_was_put_back_after_its_death(road):
    road.published("gone", 1.0)
    road.taken("gone", 2.0)
    road.killed(3.0)
    road.restored("gone", 5.0)

    assert road.losses() == Losses([], ["gone"])


def test_a_kill_is_kept_for_the_message_that_no_earlier_one_can_explain(road):
    road.published("at either", 1.0)
    road.killed(3.0)
    road.published("at the second", 4.0)
    road.killed(5.0)

    assert road.losses() == Losses(["at either", "at the second"], [])


def test_what_was_taken_after_a_kill_was_not_taken_along_by_it(road):
    """It lay in the queue when the worker was killed, but came through; what is missing was sent again later."""
    road.published("gone", 1.0)
    road.killed(3.0)
    road.taken("gone", 4.0)
    road.sent("gone", 4.1)

    assert road.losses() == Losses([], ["gone"])


def test_a_worker_that_was_killed_before_it_could_note_what_it_published_leaves_a_doubt(road):
    road.published("lost", 1.0)
    road.taken("lost", 2.0)
    road.killed(3.0)
    road.taken("lost", 5.0, "tag 2")
    road.sent("lost", 6.0)
    road.sent("lost", 7.0)

    assert road.losses() == Losses(["lost"], [])


def test_any_of_several_copies_may_be_the_one_that_is_missing(road):
    road.published("lost", 1.0, copies=2)
    road.killed(3.0)
    road.taken("lost", 4.0)
    road.sent("lost", 4.1)
    road.taken("lost", 5.0, "tag 2")

    assert road.losses() == Losses(["lost"], [])


class OnePut:
    """A client of the broker whose transaction is tried several times; *tries* say whether the message is there."""

    def __init__(self, *tries):
        self.tries = tries

    def transaction(self, put_back, *_):
        message = dumps([{"headers": {"id": "task"}, "properties": {}}, "", "chaos"])
        for there in self.tries:
            pipe = MagicMock()
            pipe.hget.return_value = message if there else None
            put_back(pipe)


@pytest.fixture
def qos(monkeypatch, tmp_path):
    """Kombu's own, noting what it puts back."""
    for owner, name in (
        (QoS, "restore_by_tag"),
        (QoS, "_remove_from_indices"),
        (Channel, "_do_restore_message"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    note_what_is_put_back(History(tmp_path, "worker:w1"))
    with embedded_server() as server, Connection(server.url) as connection:
        yield connection.default_channel.qos


@pytest.mark.parametrize(
    ("tries", "times"), [([True], 1), ([True, True], 1), ([True, False], 0), ([False], 0)]
)
def test_a_message_is_put_back_once_and_not_if_it_was_acknowledged_meanwhile(qos, tmp_path, tries, times):
    qos.restore_by_tag(b"tag", client=OnePut(*tries))

    noted = [(record["task_id"], record["tag"]) for record in read(tmp_path) if record.what == "restored"]
    assert noted == [("task", "tag")] * times


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
