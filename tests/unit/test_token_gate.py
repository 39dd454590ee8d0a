"""A gate lets no older token through than it has seen, and tells of each one it holds up."""

from __future__ import annotations

import logging

import pytest

from celery_fence.errors import ConfigError, StaleToken
from celery_fence.fencing.streams import MemoryMarks, Stamp, TokenGate
from celery_fence.locking import current


@pytest.fixture
def told():
    return []


@pytest.fixture
def gate(told):
    return TokenGate(MemoryMarks(), emit=told.append)


def test_a_newer_token_closes_the_gate_to_an_older_one(gate, told):
    assert gate.admits(Stamp("s", 5, "o1"))
    assert gate.admits(Stamp("s", 6, "o2"))
    assert not gate.admits(Stamp("s", 5, "o1"), what="payout.paid")

    (event,) = told
    assert (event.scope, event.token, event.owner, event.seen, event.seen_owner) == ("s", 5, "o1", 6, "o2")
    assert (event.what, event.refused, event.key) == ("payout.paid", True, "s")


def test_a_refusal_can_be_an_error(gate):
    gate.check(Stamp("s", 6))
    with pytest.raises(StaleToken) as refused:
        gate.check(Stamp("s", 5))

    assert (refused.value.scope, refused.value.token, refused.value.seen) == ("s", 5, 6)


def test_a_redelivered_message_passes_again(gate, told):
    assert [gate.admits(Stamp("s", 5, "o1")) for _ in range(3)] == [True] * 3
    assert told == []


def test_an_equal_token_of_another_owner_is_held_up(gate):
    gate.admits(Stamp("s", 5, "o1"))

    assert not gate.admits(Stamp("s", 5, "o2"))
    assert gate.admits(Stamp("s", 5)), "one that says nothing of its owner passes"


def test_scopes_are_compared_apart(gate):
    gate.admits(Stamp("s:1", 9))

    assert gate.admits(Stamp("s:2", 5))


def test_in_shadow_everything_passes_and_what_is_stale_is_told(told):
    marks = MemoryMarks()
    gate = TokenGate(marks, mode="shadow", emit=told.append)
    gate.admits(Stamp("s", 6))

    assert gate.admits(Stamp("s", 5))
    assert [event.refused for event in told] == [False]
    assert not TokenGate(marks).admits(Stamp("s", 5)), "the straggler didn't lower the mark"


def test_a_gate_that_is_off_asks_nobody():
    gate = TokenGate(None, mode="off")

    assert gate.admits(Stamp("s", 5))


def test_a_mode_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="enforce"):
        TokenGate(MemoryMarks(), mode="shadw")


class Broken:
    """A store that is away."""

    def raise_mark(self, scope, mark):
        raise ConnectionError("away")


def test_nothing_passes_while_the_marks_are_out_of_reach():
    with pytest.raises(ConnectionError):
        TokenGate(Broken()).admits(Stamp("s", 5))


def test_without_an_app_a_refusal_is_a_line_in_the_log(caplog):
    gate = TokenGate(MemoryMarks())
    gate.admits(Stamp("s", 6))
    with caplog.at_level(logging.WARNING, "celery_fence"):
        gate.admits(Stamp("s", 5))

    (line,) = caplog.records
    assert "'s'" in line.getMessage()
    assert {"5", "6"} <= set(line.getMessage().replace("=", " ").replace(",", " ").replace(")", " ").split())


def test_inside_a_fenced_task_the_observers_of_its_app_are_told(make_lease):
    gate, told = TokenGate(MemoryMarks()), []
    lease = make_lease(emit=told.append, source="the task")
    gate.admits(Stamp("s", 6))
    with current.entered(current.Frame(lease, "the task")):
        gate.admits(Stamp("s", 5))

    assert [event.scope for event in told] == ["s"]
