"""
Every transition of the explored model, put to the stores.

The vectors are read off the explored worlds, so what is proved of the model there is
proved of the very rules that the scripts and the memory store follow here.
"""

from __future__ import annotations

import pytest
import redis

from celery_fence.stores import from_url
from celery_fence.testing.servers import NoServerError, embedded_server
from tests.chaos.model.explore import explored
from tests.chaos.model.memory_keeper import MemoryKeeper
from tests.chaos.model.redis_keeper import RedisKeeper
from tests.chaos.model.scopes import SHORT
from tests.chaos.model.vectors import vectors

# It computes, and takes ten times as long on a machine that is as many times as busy.
pytestmark = pytest.mark.timeout(600)

WORDS = {
    ("acquire", "granted", ""),
    ("acquire", "held", ""),
    ("acquire", "ended", ""),
    ("acquire", "delivery_ended", ""),
    ("renew", "kept", ""),
    ("renew", "reinstated", ""),
    ("renew", "gone", "taken"),
    ("renew", "gone", "expired"),
    ("renew", "gone", "released"),
    ("renew", "gone", "force_released"),
    ("renew", "gone", "superseded"),
    ("release", "released", ""),
    ("release", "gone", "taken"),
    ("release", "gone", "force_released"),
    ("release", "gone", "superseded"),
    ("force", "force_released", ""),
}


@pytest.fixture(scope="module")
def every():
    return vectors([explored(scope) for scope in SHORT])


@pytest.fixture
def redis_keeper():
    try:
        with embedded_server() as server:
            store = from_url(server.url)
            yield RedisKeeper(store, redis.Redis.from_url(server.url))
            store.close()
    except NoServerError as error:
        pytest.skip(str(error))


def differences(every, found):
    """The vectors whose answer, kept state or listing isn't the model's; the first few, to be read."""
    return [
        (vector, seen)
        for vector, seen in zip(every, found, strict=True)
        if (vector.answer, vector.after, vector.after.lease is not None) != seen
    ][:3]


def test_the_vectors_have_every_question_and_every_answer(every):
    asked = {(each.question.kind, each.answer.word, each.answer.reason) for each in every if each.answer}

    assert asked == WORDS
    assert any(each.question.kind == "note" for each in every)
    assert any(each.question.behind for each in every)


def test_the_redis_scripts_do_in_every_explored_state_what_the_model_does(every, redis_keeper):
    assert differences(every, redis_keeper.run(every)) == []


def test_the_memory_store_does_in_every_explored_state_what_the_model_does(every):
    assert differences(every, MemoryKeeper().run(every)) == []
