"""Every observer is told, whatever the others do."""

from __future__ import annotations

import logging

from celery_fence.locking.events import Emitter, Event

EVENT = Event(None, "job:1")


def test_every_observer_is_told_in_order():
    seen = []
    Emitter(lambda event: seen.append(("first", event)), lambda event: seen.append(("second", event)))(EVENT)

    assert seen == [("first", EVENT), ("second", EVENT)]


def test_one_that_raises_keeps_nothing_from_the_others_and_is_logged_once(caplog):
    told = []

    def broken(event):
        told.append("broken")
        raise RuntimeError("no metrics today")

    emit = Emitter(broken, lambda event: told.append("sound"))
    with caplog.at_level(logging.DEBUG, "celery_fence"):
        emit(EVENT)
        emit(EVENT)

    assert told == ["broken", "sound", "broken", "sound"]
    assert [(record.levelname, record.exc_info[0]) for record in caplog.records] == [("ERROR", RuntimeError)]
