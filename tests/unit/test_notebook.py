"""Notes are written in batches, again with patience, and not for ever."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.notebook import BATCH, PACE, PATIENCE, Notebook, write
from celery_fence.locking.store import Note


class NotingStore:
    """Writes notes down, or is out of reach."""

    def __init__(self):
        self.batches = []
        self.down = False
        self.written = threading.Event()

    def note(self, notes):
        if self.down:
            raise StoreUnavailable("out of reach")
        self.batches.append([each.delivery for each in notes])
        self.written.set()


def note(delivery):
    return Note("k", delivery, "returned", 60.0)


@pytest.fixture
def noting():
    return NotingStore()


@pytest.fixture
def book(noting):
    book = Notebook()
    for number in range(2 * BATCH + 1):
        book.add(noting, note(str(number)), 100.0)
    return book


def put_back(book, failed, now):
    book.settle(failed, failed, now)


def write_down(book, now):
    taken = book.take(now)
    book.settle(taken, write(taken[:1], lambda text: book.complaint(text)()), now)


def test_a_hundred_notes_take_one_round_trip(book, noting):
    assert write(book.take(100.0), print) == []

    assert [len(batch) for batch in noting.batches] == [BATCH, BATCH, 1]
    assert [each for batch in noting.batches for each in batch] == [str(n) for n in range(2 * BATCH + 1)]


def test_notes_of_two_stores_are_not_mixed(noting):
    book, other = Notebook(), NotingStore()
    for store, name in ((noting, "a"), (other, "b"), (noting, "c")):
        book.add(store, note(name), 100.0)
    write(book.take(100.0), print)

    assert (noting.batches, other.batches) == ([["a", "c"]], [["b"]])


def test_a_store_out_of_reach_keeps_nothing_of_another_store_back(noting):
    book, other = Notebook(), NotingStore()
    other.down = True
    book.add(other, note("b"), 100.0)
    book.add(noting, note("a"), 100.0)
    warned = []
    failed = write(book.take(100.0), warned.append)

    assert noting.batches == [["a"]]
    assert warned == ["1 run couldn't be noted as complete yet: out of reach"]
    assert [each.delivery for _, each, _ in failed] == ["b"]


def test_what_was_taken_is_not_taken_twice(book):
    taken = book.take(100.0)
    assert len(taken) == 2 * BATCH + 1
    assert book.take(100.0) == []
    book.settle(taken, [], 100.0)
    assert len(book) == 0


def test_after_a_failure_the_store_is_left_in_peace_for_a_while(book):
    put_back(book, book.take(100.0), 100.0)

    assert book.take(100.0 + PACE - 0.01) == []
    assert len(book.take(100.0 + PACE)) == 2 * BATCH + 1


def test_what_is_put_back_comes_before_what_was_added_meanwhile(noting):
    book = Notebook()
    book.add(noting, note("first"), 100.0)
    taken = book.take(100.0)
    book.add(noting, note("second"), 100.5)
    put_back(book, taken, 101.0)

    assert [each.delivery for _, each, _ in book.take(101.0 + PACE)] == ["first", "second"]


def test_what_was_taken_back_and_then_failed_is_in_the_book_once(book):
    """Writer: takes them - the heartbeat: is struck, takes back - writer: couldn't write them."""
    taken = book.take(100.0)
    book.take_back()
    book.settle(taken, taken, 100.0)

    assert len(book) == len(book.take(100.0 + PACE)) == 2 * BATCH + 1


def test_a_note_that_cannot_be_written_is_dropped_when_its_time_is_over(book):
    put_back(book, book.take(100.0), 100.0 + PATIENCE - 1)
    assert len(book) == 2 * BATCH + 1
    put_back(book, book.take(100.0 + PATIENCE + PACE), 100.0 + PATIENCE + PACE)

    assert len(book) == 0


def test_notes_that_are_given_up_are_told_of_with_their_number(heartbeat, noting, clock, caplog):
    noting.down = True
    for delivery in "abc":
        heartbeat.note(noting, note(delivery))
    heartbeat.pay()
    clock.advance(PATIENCE + 1)
    assert "given up" not in caplog.text
    heartbeat.pay()

    assert heartbeat.noting == 0
    told = [record for record in caplog.records if "given up" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]
    assert told[0].getMessage().startswith("3 runs couldn't be noted as complete for ten minutes")


def test_notes_that_are_written_at_last_are_not_told_of_as_given_up(heartbeat, noting, clock, caplog):
    heartbeat.note(noting, note("a"))
    clock.advance(PATIENCE + 1)
    heartbeat.pay()

    assert noting.batches == [["a"]]
    assert "given up" not in caplog.text


def test_a_store_that_stays_out_of_reach_is_told_of_aloud_ever_more_seldom(book, noting, caplog):
    noting.down = True
    for turn in range(1, 21):
        write_down(book, 100.0 + turn * PACE)

    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 5  # 1, 2, 4, 8, 16
    noting.down = False
    write_down(book, 200.0)
    noting.down = True
    book.add(noting, note("later"), 201.0)
    caplog.clear()
    write_down(book, 201.0)

    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_the_heartbeat_writes_a_note_within_its_second(noting):
    heartbeat = Heartbeat()
    heartbeat.note(noting, note("a"))

    assert noting.written.wait(1.5)
    heartbeat.stop()


def test_a_note_that_fails_after_the_heartbeat_would_have_ended_is_tried_again(noting, monkeypatch):
    """A store that refuses keeps its caller for a while, and nothing else is to be done meanwhile."""
    monkeypatch.setattr("celery_fence.locking.heartbeat.LINGER", 0.05)
    monkeypatch.setattr("celery_fence.locking.notebook.PACE", 0.05)
    heartbeat, write_down = Heartbeat(), noting.note

    def refuse_slowly(notes):
        noting.note = write_down
        end = time.monotonic() + 0.5
        while heartbeat.running and time.monotonic() < end:
            time.sleep(0.01)
        raise StoreUnavailable("out of reach")

    noting.note = refuse_slowly
    heartbeat.note(noting, note("a"))

    assert noting.written.wait(5)
    heartbeat.stop()


def test_a_process_that_ends_waits_for_its_notes(noting):
    heartbeat = Heartbeat()
    for number in range(3):
        heartbeat.note(noting, note(str(number)))
    heartbeat.flush(5.0)

    assert heartbeat.noting == 0
    assert [each for batch in noting.batches for each in batch] == ["0", "1", "2"]
    heartbeat.stop()


def test_a_process_that_ends_waits_no_longer_than_it_wants_for_a_store_out_of_reach(noting, caplog):
    noting.down = True
    heartbeat = Heartbeat()
    heartbeat.note(noting, note("a"))
    heartbeat.flush(0.3)

    assert heartbeat.noting == 1
    assert "1 run couldn't be noted as complete yet" in caplog.text
    heartbeat.stop()


def test_how_loud_a_complaint_is_follows_from_the_try_it_is_about_however_late_it_is_told(noting, caplog):
    """Others may be told first, by a thread of their own, and the next try may be over by then."""
    book = Notebook()
    book.add(noting, note("a"), 100.0)
    complaints = []
    for number in range(1, 9):
        complaints.append(book.complaint(f"try {number}"))
        put_back(book, book.take(100.0 + 100 * number), 100.0 + 100 * number)
    with caplog.at_level(logging.WARNING):
        for tell in complaints:
            tell()

    assert [record.message for record in caplog.records] == ["try 1", "try 2", "try 4", "try 8"]
