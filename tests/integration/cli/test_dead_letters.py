"""`fence dead-letters` on all three brokers: nothing is lost, and the order stays."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from bench.app import WORLD
from bench.waiting import wait_until
from kombu import Queue

from celery_fence.task.dead_letters import letters, purge_letters
from celery_fence.task.letters import go_through
from tests.integration.cli.commands import document, run


@pytest.fixture
def given_up(bench):
    """Three messages that were given up, in order, and the keys they wait for."""
    keys = [bench.key("cli") for _ in range(3)]
    for key in keys:
        bench.occupy(key)
    results = [bench.send("dead_letter", key, {"value": key}) for key in keys]
    for number, result in enumerate(results):
        assert bench.outcome(result) == "FAILURE"
        wait_until(lambda: result.id in ids_of(letters(bench.app)), what=f"letter {number}")  # noqa: B023
    yield [result.id for result in results], keys
    for key in keys:
        bench.vacate(key)


def ids_of(found):
    return [letter.id for letter in found]


def dead_letters(bench, *words, **how):
    env = {WORLD: json.dumps(bench.conf)}
    return run("celery", "-A", "bench.app", "fence", "dead-letters", *words, env=env, **how)


def listed(bench):
    return [letter["id"] for letter in document(dead_letters(bench, "list", "--json"))["letters"]]


def test_an_empty_dead_letter_queue_is_a_sentence_and_no_error(bench):
    done = dead_letters(bench, "list")

    assert done.returncode == 0
    assert done.stdout.startswith("No dead letters in the queue")


def test_a_queue_that_is_not_there_is_not_made_and_a_misspelt_name_is_an_error(bench):
    name = bench.key("no-such-queue")
    done = dead_letters(bench, "list", "--queue", name)

    if bench.kind == "redis":
        assert f"No dead letters in the queue {name!r}" in done.stdout  # an empty queue is none there
    else:
        assert done.returncode == 2
        assert f"There is no queue {name!r}" in done.stderr
    with bench.app.connection_for_read() as connection, pytest.raises(connection.channel_errors):
        Queue(name).bind(connection.channel()).queue_declare(passive=True)


def test_the_usual_queue_before_the_first_dead_letter_is_empty(bench):
    world = {**bench.conf, "fence_dead_letter_queue": bench.key("not-yet")}
    for words in (["list"], ["replay", "--all"], ["purge", "--all"]):
        done = run(
            "celery", "-A", "bench.app", "fence", "dead-letters", *words, env={WORLD: json.dumps(world)}
        )
        assert done.returncode == 0, done.stderr


def test_letters_are_listed_with_what_is_known_and_stay_in_their_order(bench, given_up):
    ids, keys = given_up
    first = document(dead_letters(bench, "list", "--json"))["letters"]

    assert sorted(letter["id"] for letter in first) == sorted(ids)
    by_id = {letter["id"]: letter for letter in first}
    letter = by_id[ids[0]]
    assert (letter["task"], letter["key"], letter["reason"]) == ("dead_letter", f"job:{keys[0]}", "held")
    assert (letter["attempts"], letter["original_queue"]) == (1, bench.queue)
    assert datetime.fromisoformat(letter["first_miss"]) <= datetime.fromisoformat(letter["last_miss"])
    assert datetime.fromisoformat(letter["last_miss"]).utcoffset() is not None

    for _ in range(3):
        assert listed(bench) == [letter["id"] for letter in first]


def test_one_letter_is_shown_with_its_arguments_and_holder(bench, given_up):
    ids, keys = given_up
    done = dead_letters(bench, "show", ids[1])

    assert done.returncode == 0, done.stderr
    for fact in (ids[1], keys[1], "the test", "dead_letter", bench.queue):
        assert fact in done.stdout
    (letter,) = document(dead_letters(bench, "show", ids[1], "--json"))["letters"]
    assert keys[1] in letter["args"]
    assert letter["holder_task"] == "the test"


def test_a_letter_that_is_not_there_is_an_error_that_says_where_to_look(bench, given_up):
    done = dead_letters(bench, "show", "nobody")

    assert done.returncode == 1
    assert "No dead letter 'nobody' in the queue" in done.stderr
    assert "fence dead-letters list" in done.stderr


def test_a_replay_of_one_runs_it_and_leaves_the_others_in_their_order(bench, given_up):
    ids, keys = given_up
    order = listed(bench)
    bench.vacate(keys[1])
    found = document(dead_letters(bench, "replay", "--id", ids[1], "--json"))

    assert found["replayed"] == [ids[1]]
    (start,) = wait_until(lambda: bench.ledger.starts(keys[1]))
    assert start["task_id"] == ids[1]
    assert listed(bench) == [each for each in order if each != ids[1]]


def test_a_replay_of_all_runs_all(bench, given_up):
    ids, keys = given_up
    for key in keys:
        bench.vacate(key)
    done = dead_letters(bench, "replay", "--all")

    assert "Sent back 3 dead letters" in done.stdout
    assert all(each in done.stdout for each in ids)
    wait_until(lambda: all(bench.ledger.ends(key) for key in keys))
    assert listed(bench) == []


def test_an_id_that_is_not_there_is_told_after_the_others_were_replayed(bench, given_up):
    ids, keys = given_up
    bench.vacate(keys[0])
    done = dead_letters(bench, "replay", "--id", ids[0], "--id", "nobody")

    assert done.returncode == 1
    assert ids[0] in done.stdout
    assert "nobody" in done.stderr
    wait_until(lambda: bench.ledger.ends(keys[0]))


def test_a_message_of_somebody_else_stays_where_it_is(bench):
    """Such as one that RabbitMQ itself dead-lettered: sent to nowhere it would be lost."""
    name = bench.conf["fence_dead_letter_queue"]
    queue = bench.app.amqp.queues[name]
    result = bench.app.tasks["plain"].apply_async(("k",), queue=queue)
    wait_until(lambda: ids_of(letters(bench.app)))
    done = dead_letters(bench, "replay", "--all")

    assert "Sent back 0 dead letters" in done.stdout
    assert f"{result.id} stays" in done.stderr
    assert dead_letters(bench, "replay", "--id", result.id).returncode == 1
    assert listed(bench) == [result.id]


def test_nothing_is_purged_without_a_yes(bench, given_up):
    ids, _ = given_up
    done = dead_letters(bench, "purge", "--all", answer="n\n")

    assert done.returncode == 1
    assert all(each in done.stderr for each in ids)
    assert sorted(listed(bench)) == sorted(ids)


def test_a_purge_deletes_the_chosen_and_says_so_in_the_log(bench, given_up):
    ids, keys = given_up
    done = dead_letters(bench, "purge", "--id", ids[2], "--yes", "--json")

    assert document(done)["purged"] == [ids[2]]
    assert f"deleted the dead letter {ids[2]} (dead_letter) of the key 'job:{keys[2]}'" in done.stderr
    assert sorted(listed(bench)) == sorted(ids[:2])
    assert dead_letters(bench, "purge", "--all", answer="y\n").returncode == 0
    assert listed(bench) == []


def test_letters_go_back_by_themselves_when_something_fails_on_the_way(bench, given_up, capsys):
    order = ids_of(letters(bench.app))
    queue = bench.app.amqp.queues[bench.conf["fence_dead_letter_queue"]]

    def fail_at_the_second(_message, letter):
        if letter.id == order[1]:
            raise ZeroDivisionError
        return False

    with pytest.raises(ZeroDivisionError):
        go_through(bench.app, queue, fail_at_the_second)

    assert sorted(ids_of(letters(bench.app))) == sorted(order)
    # What kombu says when it has to put messages back itself, at the end of the connection.
    assert "Restoring" not in capsys.readouterr().err


def test_a_letter_that_comes_straight_back_ends_the_pass(bench):
    """A replay while the key is still held comes back as a dead letter, which would go round for ever."""
    queue = bench.app.amqp.queues[bench.conf["fence_dead_letter_queue"]]
    first, second = (bench.app.tasks["plain"].apply_async(("k",), queue=queue).id for _ in range(2))
    wait_until(lambda: ids_of(letters(bench.app)) == [first, second])

    def send_round(_message, letter):
        assert ids_of(sent) != [first, second, first], "the pass goes on"
        sent.append(letter)
        bench.app.tasks["plain"].apply_async(("k",), queue=queue, task_id=letter.id)
        return True

    sent = []
    assert ids_of(go_through(bench.app, queue, send_round)) == [first, second]
    wait_until(lambda: sorted(ids_of(letters(bench.app))) == sorted([first, second]))


def test_looking_often_does_not_use_up_the_delivery_limit_of_a_quorum_queue(bench):
    """RabbitMQ 4 drops what came back 20 times, unless told otherwise; here 4 times do."""
    if bench.kind != "quorum":
        pytest.skip("also on CI: only quorum queues have a delivery limit")
    name = f"{bench.queue}.limited"
    limits = {"x-queue-type": "quorum", "x-delivery-limit": 4}
    queue = Queue(name, routing_key=name, queue_arguments=limits)
    bench.app.amqp.queues.add(queue)
    results = [bench.app.tasks["plain"].apply_async(("k",), queue=queue) for _ in range(3)]

    try:
        for _ in range(12):
            assert ids_of(letters(bench.app, queue=name)) == [result.id for result in results]
        assert len(purge_letters(bench.app, queue=name)) == 3
    finally:
        with bench.app.connection_for_write() as connection, connection.channel() as channel:
            channel.queue_delete(name)
