"""A message that was given up lies in a queue with its reasons, and can be sent back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from celery_fence import ConfigError, DeadLettered, FencedTask, policies, signals
from celery_fence.task.dead_letters import DEAD, _still_ahead, purge_letters, replay
from celery_fence.task.dead_letters import letters as dead_letters
from celery_fence.task.notes import HEADER, Notes, Route

QUEUE = "fence.dead_letters"


@pytest.fixture
def task(app):
    made = []

    def make(policy="dead_letter"):
        if not made:

            @app.task(base=FencedTask, lock_key="job:<key>", miss_policy=policy, name="the task")
            def body(key, *, fencing_token): ...

            made.append(body)
        return made[0]

    return make


@pytest.fixture
def letters(app):
    """Take all messages out of a queue."""

    def letters(name):
        found = []
        with app.connection_for_read() as connection:
            queue = connection.SimpleQueue(name)
            while queue.qsize():
                found.append(queue.get(block=False))
                found[-1].ack()
            queue.close()
        return found

    letters(QUEUE)  # the memory broker is shared by the apps of a process
    return letters


def test_it_is_the_message_itself_with_a_header_that_says_why(app, task, in_worker, occupy, letters):
    occupy("job:k", owner="them", task_name="their task", task_id="their id")
    outcome = in_worker(task(), "k", id="mine", headers={"x-tenant": "7", HEADER: {"delivery": "d"}})

    assert isinstance(outcome.value, DeadLettered)
    (letter,) = letters(QUEUE)
    assert (letter.headers["id"], letter.headers["x-tenant"], letter.payload[0]) == ("mine", "7", ["k"])
    dead = letter.headers[DEAD]
    assert {
        name: dead[name] for name in ("reason", "key", "task_id", "attempts", "holder", "holder_task_id")
    } == {
        "reason": "held",
        "key": "job:k",
        "task_id": "mine",
        "attempts": 1,
        "holder": "them",
        "holder_task_id": "their id",
    }
    assert dead["route"]["queue"] == app.conf.task_default_queue
    assert Notes.read(letter.headers).delivery not in ("", "d")  # it runs wherever it is moved by hand


def test_after_a_wait_it_tells_how_often_and_since_when_and_where_it_came_from(
    task, in_worker, occupy, letters
):
    notes = Notes(delivery="d")
    for number in range(3):
        notes = notes.missed(0, number + 1, 1.7e9 + number, Route("", "first", "first"))
    occupy("job:k")
    in_worker(task(policies.Retry(max_attempts=3)), "k", headers={HEADER: notes.header()})

    (letter,) = letters(QUEUE)
    dead = letter.headers[DEAD]
    assert (dead["reason"], dead["attempts"], dead["first_miss"]) == ("max_attempts", 4, 1.7e9)
    assert dead["last_miss"] > 1.7e9 + 2
    assert dead["route"]["queue"] == "first"


def test_another_queue_may_be_named_by_policy_or_setting(app, task, in_worker, occupy, letters):
    occupy("job:k")
    outcome = in_worker(task(policies.DeadLetter(queue="graveyard")), "k")

    assert len(letters("graveyard")) == 1
    assert outcome.value.queue == "graveyard"
    assert str(outcome.value).endswith(" --queue graveyard")


def test_its_error_says_how_to_send_it_back(task, in_worker, occupy, letters):
    occupy("job:k")
    outcome = in_worker(task(), "k", id="mine")

    assert "after 1 try;" in str(outcome.value)
    assert str(outcome.value).endswith("fence dead-letters replay --id mine")


def test_it_is_signalled_with_its_facts(task, in_worker, occupy, letters):
    told = []

    def hears(sender, key, queue, reason, attempts, **_):
        told.append((sender.name, key, queue, reason, attempts))

    signals.task_dead_lettered.connect(hears)
    occupy("job:k")
    in_worker(task(), "k")
    signals.task_dead_lettered.disconnect(hears)

    assert told == [("the task", "job:k", QUEUE, "held", 1)]


class TestAReplay:
    @pytest.fixture
    def given_up(self, task, in_worker, occupy, leases, letters):
        def given_up(**request):
            occupy("job:k")
            in_worker(task(), "k", headers={HEADER: {"delivery": "d"}}, **request)
            leases.force_release("job:k")

        return given_up

    def test_sends_it_back_with_its_id_as_a_new_delivery_with_a_fresh_wait(self, app, given_up, letters):
        given_up(id="mine", retries=2)

        assert replay(app) == 1
        (message,) = letters(app.conf.task_default_queue)
        assert (message.headers["id"], message.headers["retries"], message.payload[0]) == ("mine", 2, ["k"])
        notes = Notes.read(message.headers)
        assert notes == Notes(delivery=notes.delivery)
        assert notes.delivery not in ("", "d")
        assert DEAD not in message.headers
        assert letters(QUEUE) == []

    def test_is_bounded_by_its_limit_and_counts(self, app, given_up, letters):
        for number in range(3):
            given_up(id=f"number-{number}")

        assert replay(app, limit=2) == 2
        assert len(letters(app.conf.task_default_queue)) == 2
        assert len(letters(QUEUE)) == 1

    def test_of_nothing_is_none(self, app, task, letters):
        task()

        assert replay(app) == 0

    @pytest.mark.parametrize("ask", [replay, dead_letters, purge_letters])
    def test_of_a_queue_that_there_is_not_says_so_and_makes_none(self, app, task, letters, ask):
        task()

        for _ in range(2):
            with pytest.raises(ConfigError, match="There is no queue 'fence\\.dead_leters'"):
                ask(app, queue="fence.dead_leters")

    @pytest.mark.parametrize("limit", [-1, "2", 1.5, True])
    def test_with_a_limit_that_is_none_is_refused(self, app, given_up, letters, limit):
        given_up(id="mine")

        with pytest.raises(ConfigError, match=r"limit is .*, but must be a whole number, 0 or more"):
            replay(app, limit=limit)
        assert replay(app, limit=0) == 0
        assert len(letters(QUEUE)) == 1

    def test_with_one_id_as_a_text_is_refused_since_its_letters_are_ids_too(self, app, given_up, letters):
        given_up(id="m")

        with pytest.raises(ConfigError, match="Write \\['mine'\\]"):
            purge_letters(app, ids="mine")
        assert len(letters(QUEUE)) == 1

    def test_drops_the_membership_in_a_chord_that_was_told_of_the_failure(self, app, task, given_up, letters):
        given_up(id="mine", chord=dict(task().si("body").set(task_id="b")), group="g")
        replay(app)

        (message,) = letters(app.conf.task_default_queue)
        assert message.payload[2]["chord"] is None


@pytest.mark.parametrize(
    "ahead, kept",
    [(timedelta(hours=1), True), (timedelta(hours=-1), False)],
)
@pytest.mark.parametrize("zone", [UTC, None])
def test_an_expiry_that_has_passed_would_only_discard_what_is_replayed(ahead, kept, zone):
    moment = (datetime.now(tz=UTC) + ahead).replace(tzinfo=zone).isoformat()

    assert _still_ahead(moment) == (moment if kept else None)
    assert _still_ahead(None) is None
