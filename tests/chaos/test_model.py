"""
The protocol model (see `model/__init__.py`): every state that can be reached keeps every promise.

And the model can tell: with one rule taken out, each promise is seen to break.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.model import promises
from tests.chaos.model.__main__ import main
from tests.chaos.model.explore import explore, explored, find
from tests.chaos.model.limits import LIMITS
from tests.chaos.model.mutations import MUTATIONS
from tests.chaos.model.scope import FAULTS
from tests.chaos.model.scopes import SHORT
from tests.chaos.model.trace import TEXTS, told

# It computes, and takes ten times as long on a machine that is as many times as busy.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("scope", SHORT, ids=lambda scope: scope.name)
def test_every_state_that_can_be_reached_keeps_every_promise(scope):
    found = explored(scope)

    assert found.finding is None, told(found.finding)


def test_the_worlds_have_every_kind_of_step():
    taken = sum((explored(scope).taken for scope in SHORT), Counter())

    assert set(taken) == set(TEXTS) | set(FAULTS)
    assert taken.total() > 800_000
    assert sum(explored(scope).states for scope in SHORT) > 90_000


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_model_tells_how_a_promise_breaks_without_one_of_its_rules(name):
    mutation = MUTATIONS[name]

    found = explore(mutation.scope, sought=mutation.breaks).finding

    assert found is not None
    assert found.text == mutation.breaks


def test_each_promise_is_seen_to_break():
    assert {mutation.breaks for mutation in MUTATIONS.values()} == promises.PROMISES


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_not_promised_is_within_reach_of_the_model(name):
    """So that its promises hold of worlds in which messages are late and bodies are paused."""
    assert find(LIMITS[name]).finding is not None


def test_a_trace_is_told_in_the_fewest_steps_one_to_a_line(capsys):
    assert main(["--mutate", "incr_tokens"]) == 0

    lines = capsys.readouterr().out.splitlines()
    texts = [line[5:62].strip() for line in lines[1:-1]]
    assert texts == [
        "a asks for the key",
        "acquire of a arrives: granted",
        "everything in the store is lost",
        "acquire of a arrives: granted",
    ]
    assert lines[-1] == f"  => {promises.GROWTH}"
