"""What a run owes the store at its end is paid when the store is back, or told of as unpaid."""

from __future__ import annotations

import itertools
import logging
import os
import threading

import pytest

from celery_fence.errors import LeaseLost, StoreUnavailable
from celery_fence.locking import events, notebook
from celery_fence.locking import heartbeat as module
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.notebook import Notebook, write
from celery_fence.locking.owed import BREAKS, Owed, worth
from celery_fence.locking.store import Claim, Ended, Ending, Note
from celery_fence.stores.memory import MemoryStore

CLAIM = Claim("job:1", "me", 30.0, delivery="d1", message="m1", record="order:1")
PLAIN = Claim("job:1", "me", 30.0)
RETURNED = Ending("returned", result=b"5")


class Restarting(MemoryStore):
    """A memory store that is down for its releases, and what else ends a run, until the test says otherwise."""

    down = False

    def __init__(self, name, clock):
        super().__init__(name, clock=clock)
        self.paid = threading.Event()
        self.asked = threading.Event()

    def release(self, *asked):
        self._answer()
        answer = super().release(*asked)
        self.paid.set()
        return answer

    def end_record(self, *asked):
        self._answer()
        super().end_record(*asked)
        self.paid.set()

    def _answer(self):
        self.asked.set()
        if self.down:
            raise StoreUnavailable("out of reach")


@pytest.fixture
def store(request, clock):
    return Restarting(request.node.name, clock)


@pytest.fixture
def told():
    """All events but renewals, which come by a clock of their own here."""
    return []


@pytest.fixture
def heartbeat(monkeypatch):
    monkeypatch.setattr(module, "GRACE", 0.1)
    heartbeat = Heartbeat()
    yield heartbeat
    heartbeat.stop()


@pytest.fixture
def locker(store, heartbeat, clock, told):
    def tell(event):
        if not isinstance(event, events.Renewed):
            told.append(event)

    return Locker(store, store, tell, heartbeat=heartbeat, clock=clock)


@pytest.fixture
def end_without_store(store, locker):
    """A run that took its lease, and ended while the store was away."""

    def end(claim=CLAIM, ending=RETURNED):
        lease = locker.acquire(claim, source="the task", terms=Terms(), into=lambda lease: None)
        store.down = True
        assert locker.release(lease, ending, claim.delivery) is None
        return lease

    return end


def pay(store):
    store.down = False
    assert store.paid.wait(10)


def test_a_release_is_made_up_for_when_the_store_is_back(store, end_without_store):
    end_without_store()
    assert store.holder("job:1") is not None
    pay(store)

    assert store.holder("job:1") is None
    assert store.acquire(Claim("job:1", "copy", 30.0, delivery="d1", message="m1")).ending == RETURNED
    assert store.record("order:1").value == b"5"


def test_it_is_tried_at_once_and_soon_again_however_seldom_the_heartbeat_looks_for_notes(
    store, end_without_store, monkeypatch
):
    monkeypatch.setattr(module, "LINGER", 3600.0)
    monkeypatch.setattr(notebook, "PACE", 0.01)
    end_without_store()
    for _ in range(3):
        store.asked.clear()
        assert store.asked.wait(10)
    pay(store)


def test_a_book_without_debts_lets_the_heartbeat_sleep(owe):
    book = Notebook()
    book.add(None, Note("k", "d", "returned", 60.0), 0.0)
    assert (book.next_at(9.0), book.owes) == (9.0, False)
    book.add(None, owe(lambda _: None), 0.0)
    assert (book.next_at(9.0), book.owes) == (0.0, True)
    taken = book.take(0.0)
    assert book.next_at(9.0) == 9.0
    book.settle(taken, taken, 5.0)
    assert book.next_at(9.0) == 5.0 + notebook.PACE
    taken = book.take(6.0)
    for _, due, _ in taken[1:]:
        due.pay(None)
    book.settle(taken, [], 6.0)

    assert (book.next_at(9.0), book.owes) == (9.0, False)


def test_a_lease_whose_release_is_owed_is_not_renewed_any_more(store, end_without_store, heartbeat, clock):
    end_without_store()
    clock.advance(30.1)

    assert heartbeat.watching == 0
    assert store.holder("job:1") is None


def test_a_release_that_comes_too_late_touches_nothing_of_another_owner_and_is_no_loss(
    store, end_without_store, clock, told, heartbeat
):
    end_without_store(PLAIN, None)
    clock.advance(30.1)
    successor = Claim("job:1", "you", 30.0)
    grant = store.acquire(successor)
    pay(store)
    heartbeat.flush(5.0)

    assert store.holder("job:1").token == grant.token
    assert [type(event) for event in told[1:]] == [events.ReleasedLease, events.ReleasedLate]
    assert told[-1].outcome == "gone"


def test_it_is_told_of_once_whoever_pays(owe, outcome):
    """Another thread pays it while this one waits for its answer."""

    def call(_):
        calls.append(1)
        if len(calls) == 1:
            owed.pay(None)
            return "ours"
        return "theirs"

    calls = []
    owed = owe(call)
    owed.pay(None)

    assert outcome == ["theirs"]


def test_it_is_told_of_when_it_is_owed_and_when_it_is_paid(store, end_without_store, told, heartbeat, caplog):
    lease = end_without_store()
    pay(store)
    heartbeat.flush(5.0)

    _, released, late = told
    assert (type(released), released.outcome) == (events.ReleasedLease, "unreachable")
    assert (type(late), late.lease, late.outcome) == (events.ReleasedLate, lease, "released")
    levels = [
        each.levelname for each in caplog.records if "'order:1' is done, but its record" in each.message
    ]
    assert levels == ["WARNING"]


def test_the_end_of_a_borrowed_record_is_made_up_for_too(store, locker):
    lease = locker.acquire(PLAIN, source="the task", terms=Terms(), into=lambda lease: None)
    claim = Claim("job:1", "an eager run", 30.0, record="order:1")
    locker.claim_record(lease, claim)
    store.down = True
    locker.end_record(lease, claim, RETURNED)
    pay(store)

    assert store.record("order:1").value == b"5"


def test_a_process_that_ends_waits_for_what_it_owes(store, end_without_store, heartbeat):
    end_without_store()
    threading.Timer(0.3, lambda: setattr(store, "down", False)).start()
    heartbeat.flush(10.0)

    assert heartbeat.noting == 0
    assert store.record("order:1").done is not None


def test_a_process_that_ends_waits_longer_for_what_it_owes_than_for_notes(
    store, end_without_store, heartbeat, monkeypatch
):
    monkeypatch.setattr(module, "GRACE", 10.0)
    end_without_store()
    threading.Timer(0.3, lambda: setattr(store, "down", False)).start()
    heartbeat.flush(0.0)

    assert heartbeat.noting == 0


def test_a_process_that_is_no_worker_waits_as_long_at_its_exit(
    store, end_without_store, heartbeat, monkeypatch
):
    """As a script or a web server that used `hold`: the interpreter calls `stop` as it ends."""
    monkeypatch.setattr(module, "LINGER", 0.1)
    monkeypatch.setattr(module, "GRACE", 10.0)
    end_without_store()
    threading.Timer(0.5, lambda: setattr(store, "down", False)).start()
    heartbeat.stop()

    assert heartbeat.noting == 0
    assert store.record("order:1").done is not None


def test_it_waits_once_also_where_it_is_told_twice_to_end(end_without_store, heartbeat, monkeypatch):
    """A worker without pool processes hears of it from Celery, and again from the interpreter."""
    end_without_store()
    heartbeat.flush(0.0)
    monkeypatch.setattr(module, "GRACE", 3600.0)
    heartbeat.flush(0.0)
    monkeypatch.undo()

    assert heartbeat.noting == 1


def test_a_process_that_ends_without_the_store_says_once_that_the_work_is_not_recorded(
    end_without_store, heartbeat, caplog
):
    end_without_store()
    heartbeat.flush(0.05)
    heartbeat.flush(0.05)

    errors = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 1
    assert (
        "'order:1' is done, but its record couldn't be written: another message would do it again"
        in errors[0]
    )


def test_a_fork_owes_nothing(end_without_store, heartbeat, store):
    end_without_store()
    child = os.fork()
    if child == 0:
        heartbeat.flush(0.05)
        os._exit(0 if heartbeat.noting == 0 and not store.paid.is_set() else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pay(store)


@pytest.fixture
def outcome():
    """What became of a debt."""
    return []


@pytest.fixture
def owe(clock, outcome):
    def owe(call, until=2000.0):
        return Owed(
            "job:1",
            "here",
            call,
            until=until,
            clock=clock,
            paid=outcome.append,
            unpaid=outcome.append,
        )

    return owe


class Down:
    """A store that is out of reach; *calls* counts what was asked of it, each of which took *took* seconds."""

    def __init__(self):
        self.calls = 0

    def note(self, _):
        self.call(self)

    def call(self, _):
        self.calls += 1
        raise StoreUnavailable("out of reach")


def test_it_is_given_up_and_told_of_when_nobody_could_gain_by_it_any_more(owe, clock, outcome):
    owed = owe(Down().call, until=1010.0)
    with pytest.raises(StoreUnavailable):
        owed.pay(None)
    assert (owed.settled, outcome) == (False, [])
    clock.advance(10)
    owed.pay(None)

    assert owed.settled
    assert [str(error) for error in outcome] == ["out of reach"]


def test_a_call_that_breaks_each_time_is_given_up_aloud(
    store, end_without_store, heartbeat, monkeypatch, caplog
):
    def broken(*_):
        store.paid.set()
        raise ZeroDivisionError

    monkeypatch.setattr(notebook, "PACE", 0.01)
    end_without_store()
    monkeypatch.setattr(MemoryStore, "release", broken)
    pay(store)
    heartbeat.flush(5.0)

    errors = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    assert heartbeat.noting == 0
    assert len(errors) == 2
    assert "for 'job:1' is given up: the call broke" in errors[0]
    assert "another message would do it again" in errors[1]


def test_a_strike_now_and_then_is_no_reason_to_give_it_up(owe, outcome):
    """As an exception that is thrown into the heartbeat's thread: once, and not each time."""
    weather = itertools.cycle([LeaseLost("struck"), LeaseLost("struck"), StoreUnavailable("out of reach")])

    def call(_):
        raise next(weather)

    book = Notebook()
    book.add(None, owe(call), 0.0)
    for now in range(12):
        taken = book.take(float(now))
        book.settle(taken, write(taken, lambda _: None), float(now))

    assert (len(book.owed), outcome) == (1, [])


class Striking(Restarting):
    """Whoever asks it in the test's own thread is struck meanwhile; to the heartbeat it is down."""

    striking = False
    struck = threading.get_ident()

    def _answer(self):
        if self.striking and threading.get_ident() == self.struck:
            raise LeaseLost("struck")
        super()._answer()


def test_what_strikes_who_asks_for_the_key_while_it_pays_is_passed_on_and_the_debt_stays(
    request, clock, heartbeat
):
    """As a soft time limit, or the loss of the lease around a block: it is meant for the asker."""
    store = Striking(request.node.name, clock)
    locker = Locker(store, store, lambda _: None, heartbeat=heartbeat, clock=clock)
    terms = {"source": "the task", "terms": Terms(), "into": lambda _: None}
    lease = locker.acquire(CLAIM, **terms)
    store.down = store.striking = True
    locker.release_later(lease, RETURNED, CLAIM.delivery)
    for _ in range(BREAKS):
        with pytest.raises(LeaseLost):
            locker.acquire(Claim("job:1", "you", 30.0), **terms)
    store.striking = False
    pay(store)
    heartbeat.flush(5.0)

    assert store.record("order:1").value == b"5"


def test_what_is_owed_is_tried_before_notes_and_those_are_written_although_one_debt_stays(owe, store):
    book, warned, order = Notebook(), [], []
    store.note = lambda notes: order.append(len(notes))
    book.add(store, Note("k", "d", "returned", 60.0), 0.0)
    book.add(store, owe(Down().call), 0.0)
    book.add(store, owe(lambda _: order.append("paid")), 0.0)
    failed = write(book.take(0.0), warned.append)

    assert order == ["paid", 1]
    assert len(failed) == len(warned) == len(book.owed) == 1
    assert warned[0] == "The end of a run on 'job:1' couldn't be made up for yet: out of reach"


def test_a_store_that_hangs_is_tried_once_a_round_and_another_debt_comes_first_in_the_next(owe, monkeypatch):
    monkeypatch.setattr(notebook, "BUDGET", -1.0)
    hangs, book = Down(), Notebook()
    debts = [owe(hangs.call), owe(hangs.call)]
    for debt in debts:
        book.add(hangs, debt, 0.0)
    book.add(hangs, Note("k", "d", "returned", 60.0), 0.0)
    failed = write(book.take(0.0), lambda _: None)

    assert hangs.calls == 1
    assert [entry[1] for entry in failed][0::2] == [debts[1], debts[0]]


def test_a_debt_is_kept_for_longer_than_a_note(owe):
    book = Notebook()
    book.add(None, owe(lambda _: None), 0.0)
    taken = book.take(0.0)
    book.settle(taken, taken, 10 * notebook.PATIENCE)

    assert len(book) == 1


@pytest.mark.parametrize(
    ("claim", "ending", "seconds"),
    [
        (PLAIN, None, 30.0),
        (Claim("k", "o", 30.0, lost_delay=5.0), RETURNED, 35.0),
        (Claim("k", "o", 30.0, delivery="d", retention=100.0), RETURNED, 100.0),
        (Claim("k", "o", 30.0, delivery="d", retention=100.0), None, 30.0),
        (Claim("k", "o", 30.0, record="r", record_retention=500.0), RETURNED, 500.0),
    ],
)
def test_it_is_worth_it_until_all_that_it_would_change_is_gone_by_itself(claim, ending, seconds):
    assert worth(claim, ending) == seconds


def test_a_late_copy_of_the_question_is_not_granted_the_key_that_was_released_late(store, end_without_store):
    end_without_store(PLAIN, None)
    pay(store)

    assert store.acquire(PLAIN) == Ended()
