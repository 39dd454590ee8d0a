"""The miss policy `DeadLetter` on every broker: published, then acknowledged, and replayable unchanged."""

from __future__ import annotations

import pytest
from bench.waiting import wait_until
from celery import chord

from celery_fence.task.dead_letters import DEAD, replay


@pytest.fixture
def bench(policy_bench):
    clear(policy_bench)
    return policy_bench


@pytest.fixture
def held(bench):
    key = bench.key("held")
    bench.occupy(key)
    yield key
    bench.vacate(key)


def letters(bench, *, take: bool = False):
    """The dead letters that lie in the queue; left there unless *take*."""
    found = []
    with bench.app.connection_for_read() as connection, connection.channel() as channel:
        queue = bench.app.amqp.queues.new_missing(bench.conf["fence_dead_letter_queue"]).bind(channel)
        queue.declare()
        while (letter := queue.get(accept=["json", "pickle"])) is not None:
            found.append(letter)
        for letter in found:
            letter.ack() if take else letter.requeue()
    return found


def clear(bench):
    letters(bench, take=True)


def give_up(bench, key, *args, **options):
    """Have a message dead-lettered; its result."""
    result = bench.send("dead_letter", key, *args, **options)
    assert bench.outcome(result) == "FAILURE"
    return result


def test_the_message_lies_in_the_dead_letter_queue_with_the_reason(bench, held):
    result = give_up(bench, held, {"value": 1})
    (letter,) = letters(bench)
    why = letter.headers[DEAD]

    assert letter.headers["id"] == result.id
    assert list(letter.payload[0]) == [held, {"value": 1}]
    assert "fencing_token" not in letter.payload[1]
    assert (why["key"], why["task"], why["holder_task"], why["attempts"]) == (
        f"job:{held}",
        "dead_letter",
        "the test",
        1,
    )


def test_its_result_is_a_failure_that_says_where_it_lies(bench, held):
    failure = give_up(bench, held).result

    assert type(failure).__name__ == "DeadLettered"
    assert held in str(failure)
    assert bench.conf["fence_dead_letter_queue"] in str(failure)


def test_failure_callbacks_run_as_for_any_failure(bench, held):
    errors = bench.key("errors")
    result = give_up(bench, held, link_error=bench.app.tasks["errback"].s(key=errors))
    told = wait_until(lambda: bench.ledger.facts("errback", key=errors))

    assert [(fact["of"], fact["failure"]) for fact in told] == [(result.id, "DeadLettered")]
    wait_until(
        lambda: bench.ledger.facts("task_failure", task_id=result.id),
        what="its signal came, which is sent last",
    )


def test_a_message_that_was_acknowledged_early_is_dead_lettered_too(bench, held):
    result = bench.send("early_dead_letter", held)

    assert bench.outcome(result) == "FAILURE"
    assert [letter.headers["id"] for letter in letters(bench)] == [result.id]


def test_a_policy_may_name_a_queue_of_its_own(bench, held):
    result = bench.send("other_dead_letter", held, {"value": "after all"})
    assert bench.outcome(result) == "FAILURE"
    assert letters(bench) == []
    bench.vacate(held)

    assert replay(bench.app, queue="other.dead") == 1
    wait_until(lambda: bench.ledger.ends(held))


def test_a_replay_runs_the_message_unchanged_under_its_id(bench, held):
    body = bench.key("body")
    options = {
        "headers": {"x-tenant": "7"},
        "priority": 3,
        "link": bench.app.tasks["join"].s(key=body),
        "shadow": "shadowed",
    }
    result = give_up(bench, held, {"value": "after all"}, **options)
    bench.vacate(held)

    assert replay(bench.app) == 1
    (start,) = wait_until(lambda: bench.ledger.starts(held))
    (joined,) = wait_until(lambda: bench.ledger.facts("join", key=body))
    assert (start["task_id"], start["retries"], start["headers"]["x-tenant"]) == (result.id, 0, "7")
    assert start["message"]["shadow"] == "shadowed"
    assert joined["results"] == "after all"
    assert letters(bench) == []


def test_a_replay_while_the_key_is_still_held_comes_back_as_a_dead_letter(bench, held):
    give_up(bench, held)
    assert replay(bench.app) == 1

    wait_until(lambda: letters(bench), what="given up again")
    assert bench.ledger.starts(held) == []


def test_a_replay_of_a_few_leaves_the_others(bench, held):
    for _ in range(3):
        give_up(bench, held)
    bench.vacate(held)

    assert replay(bench.app, limit=1) == 1
    wait_until(lambda: bench.ledger.ends(held))
    assert len(letters(bench)) == 2
    assert replay(bench.app, limit=1) == 1  # both at once would miss each other
    wait_until(lambda: len(bench.ledger.ends(held)) == 2)
    assert replay(bench.app) == 1
    wait_until(lambda: len(bench.ledger.ends(held)) == 3)


def test_a_message_that_waited_first_is_replayed_to_its_own_queue(bench, held):
    """After delays RabbitMQ names a delay exchange; the letter remembers where it was sent."""
    result = bench.send("attempts", held, {"value": "after all"})
    assert bench.outcome(result) == "FAILURE"
    (letter,) = letters(bench)
    bench.vacate(held)
    replay(bench.app)
    (start,) = wait_until(lambda: bench.ledger.starts(held))

    assert letter.headers[DEAD]["attempts"] == 3
    assert start["task_id"] == result.id


def test_a_replayed_chord_member_does_not_count_a_second_time(bench, held):
    body = bench.key("body")
    tasks = bench.app.tasks
    members = [tasks["dead_letter"].si(held, {"value": 1}), tasks["retry"].si(bench.key(), {"value": 2})]
    whole = chord(members)(tasks["join"].s(key=body))
    assert bench.outcome(whole) == "FAILURE"
    bench.vacate(held)
    wait_until(lambda: letters(bench))
    replay(bench.app)
    (start,) = wait_until(lambda: bench.ledger.ends(held) and bench.ledger.starts(held), what="it ran")

    assert start["message"]["chord"] is None
    assert bench.ledger.facts("join", key=body) == []
