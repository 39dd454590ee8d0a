"""The thread that asks one store: nothing ends it quietly, and what it was given isn't forgotten."""

from __future__ import annotations

import threading
import time

import pytest

from celery_fence.locking import duty
from celery_fence.locking.renewer import Renewer


class Struck:
    """Something a renewer calls that is struck by *error* the first time."""

    def __init__(self, error):
        self.error = error
        self.given = []
        self.done = threading.Event()

    def __call__(self, work):
        self.given.append(list(work))
        if len(self.given) == 1:
            raise self.error
        self.done.set()


@pytest.fixture
def complaints():
    return []


@pytest.mark.parametrize("error", [SystemExit(), ZeroDivisionError(), MemoryError()])
@pytest.mark.parametrize("question", ["renew", "write"])
def test_what_strikes_its_thread_is_told_and_the_same_work_done_again(question, error, complaints):
    struck = Struck(error)
    calls = {"renew": list, "write": list, question: struck}
    renewer = Renewer(calls["renew"], calls["write"], lambda: None, lambda: None, complaints.append)
    getattr(renewer, question)(["the work"])

    assert struck.done.wait(10)
    assert struck.given == [["the work"], ["the work"]]
    assert complaints == [error]
    assert renewer.running
    renewer.end()


def test_an_exception_out_of_nowhere_leaves_it_at_work(complaints, monkeypatch):
    renewed = threading.Event()
    renewer = Renewer(lambda _: renewed.set(), list, lambda: None, lambda: None, complaints.append)
    waits = [SystemExit()]
    monkeypatch.setattr(renewer, "_waits", lambda: _raise(waits.pop()) if waits else Renewer._waits(renewer))
    renewer.renew(["first"])
    assert renewed.wait(10)
    renewed.clear()
    while not complaints:
        threading.Event().wait(0.01)
    renewer.renew(["second"])

    assert renewed.wait(10)
    renewer.end()


@pytest.mark.parametrize("attempt", range(3))
def test_strikes_at_any_line_of_its_thread_keep_no_later_work_from_being_done(
    attempt, complaints, monkeypatch, strike
):
    """Between two turns too, where nothing catches them: then another thread takes its place."""
    monkeypatch.setattr(duty, "STUMBLE", 0.0)
    renewed, last = [], threading.Event()

    def renew(work):
        renewed.extend(work)
        if "the last" in work:
            last.set()

    renewer = Renewer(renew, list, lambda: None, lambda: None, complaints.append)
    for number in range(100):
        renewer.renew([number])
        time.sleep(number % 7 / 10_000)  # so that it is struck at other lines
        strike()
    renewer.renew(["the last"])

    assert last.wait(10)
    assert complaints, "nothing was struck"
    assert set(range(100)) <= set(renewed)
    renewer.end()


def test_it_ends_with_its_connection_closed_and_starts_again_with_the_next_work(complaints):
    renewed, closed = threading.Semaphore(0), threading.Semaphore(0)
    renewer = Renewer(lambda _: renewed.release(), list, closed.release, lambda: None, complaints.append)
    for _ in range(2):
        renewer.renew(["a lease"])
        assert renewed.acquire(timeout=10)
        renewer.end()
        assert closed.acquire(timeout=10)

    assert complaints == []


def _raise(error):
    raise error
