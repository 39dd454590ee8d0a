"""Chains, groups and chords over fenced tasks: nobody waits for ever, and each part counts once."""

from __future__ import annotations

import pytest
from bench.waiting import wait_until
from bench.world import Bench
from celery import chain, chord, group

from celery_fence import is_skipped


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    # What follows a task is sent long before Celery calls the last hook: a release there would come too late.
    bench = make_bench(fence_ttl=30.0, bench_linger=0.05)
    first, second = bench.launch(concurrency=2), bench.launch(concurrency=2)
    first.await_ready()
    second.await_ready()
    return bench


@pytest.fixture
def task(bench):
    return bench.app.tasks.__getitem__


@pytest.fixture
def held(bench) -> str:
    """A key that stays held for the whole test."""
    key = bench.key("held")
    bench.occupy(key)
    yield key
    bench.vacate(key)


def joined(bench, key):
    """What the chord's body on *key* was given, each time it ran."""
    return [fact["results"] for fact in bench.ledger.facts("join", key=key)]


@pytest.mark.parametrize("policy", ["default", "skip"])
def test_a_chain_of_five_steps_on_one_key_runs_without_a_single_miss(bench, task, policy):
    keys = [bench.key() for _ in range(10)]
    results = [
        chain(task(policy).si(key, {"value": step}) for step in range(5)).apply_async() for key in keys
    ]

    assert [result.get(timeout=60) for result in results] == [4] * 10
    assert [(len(bench.ledger.starts(key)), bench.misses(key)) for key in keys] == [(5, 0)] * 10


def test_a_link_on_the_same_key_is_not_skipped(bench, task):
    key = bench.key()
    first = task("skip").si(key, {"value": 1})
    first.link(task("skip").si(key, {"value": 2}))
    first.apply_async()

    wait_until(lambda: len(bench.ledger.ends(key)) == 2, what="task and link ran")
    assert bench.misses(key) == 0


def test_a_chord_with_skipped_members_completes_with_their_records(bench, task, held):
    free, body = bench.key(), bench.key("body")
    members = [task("skip").si(held), task("retry").si(free, {"value": 2}), task("skip").si(held)]
    values = chord(members)(task("join").s(key=body)).get(timeout=30)

    assert [is_skipped(value) for value in values] == [True, False, True]
    assert values[1] == 2
    assert len(joined(bench, body)) == 1


def test_a_skip_record_tells_key_reason_and_holder_in_plain_json_types(bench, held):
    record = bench.send("skip", held).get(timeout=20)

    assert f"job:{held}" in str(record)
    assert "the test" in str(record)
    assert all(isinstance(value, str | int | float | bool | None) for value in record.values())


@pytest.mark.parametrize(("policy", "value"), [("skip_value", "nothing to do"), ("skip_none", None)])
def test_a_chord_takes_the_given_result_of_a_skipped_member(bench, task, held, policy, value):
    body = bench.key("body")
    members = [task(policy).si(held), task("retry").si(bench.key(), {"value": 2})]

    assert chord(members)(task("join").s(key=body)).get(timeout=30) == [value, 2]


def test_a_skip_result_may_be_made_from_the_arguments(bench, held):
    assert bench.send("skip_callable", held).get(timeout=20) == {"skipped_for": held}


def test_a_group_with_skipped_members_can_be_waited_for(bench, task, held):
    values = (
        group(task("skip").si(key, {"value": 1}) for key in (held, bench.key(), held))
        .apply_async()
        .get(timeout=30)
    )

    assert [is_skipped(value) for value in values] == [True, False, True]


def test_a_stopped_chain_ends_with_the_record_and_runs_nothing_more(bench, task, held):
    free, body = bench.key(), bench.key("body")
    result = chain(task("skip").si(held), task("retry").si(free), task("join").s(key=body)).apply_async()

    assert is_skipped(result.get(timeout=20))
    assert is_skipped(result.parent.get(timeout=20))
    assert (bench.ledger.starts(free), joined(bench, body)) == ([], [])


def test_a_stopped_chain_inside_a_chord_counts_as_one_part(bench, task, held):
    body = bench.key("body")
    stopped = chain(task("skip").si(held), task("retry").si(bench.key()), task("retry").si(bench.key()))
    values = chord([stopped, task("retry").si(bench.key(), {"value": 2})])(task("join").s(key=body)).get(
        timeout=30
    )

    assert (is_skipped(values[0]), values[1]) == (True, 2)
    assert len(joined(bench, body)) == 1


def test_a_chain_that_stops_before_a_chord_does_not_leave_its_waiter_alone(bench, task, held):
    free, body = bench.key(), bench.key("body")
    parts = chord([task("retry").si(free, {"value": n}) for n in range(2)], task("join").s(key=body))
    result = chain(task("skip").si(held), parts).apply_async()

    assert is_skipped(result.get(timeout=20))
    assert (bench.ledger.starts(free), joined(bench, body)) == ([], [])


def test_a_chain_that_continues_hands_on_the_record(bench, task, held):
    body = bench.key("body")
    result = chain(task("skip_continue").si(held), task("join").s(key=body)).apply_async()

    assert is_skipped(result.get(timeout=20))
    assert len(joined(bench, body)) == 1


@pytest.mark.parametrize(("policy", "runs"), [("skip", 0), ("skip_continue", 1)])
def test_links_run_only_where_the_chain_continues(bench, task, held, policy, runs):
    body, after = bench.key("body"), bench.key("after")
    task(policy).apply_async((held,), link=task("join").s(key=body)).get(timeout=20)
    task("plain").delay(after).get(timeout=20)
    if runs:
        wait_until(lambda: joined(bench, body))

    assert len(joined(bench, body)) == runs


def test_no_success_hook_runs_for_a_skipped_task(bench, held):
    skipped, ran = bench.send("skip", held), bench.send("skip", bench.key())
    skipped.get(timeout=20)
    ran.get(timeout=20)
    wait_until(lambda: bench.ledger.facts("task_success", task_id=ran.id))

    assert bench.ledger.facts("task_success", task_id=skipped.id) == []


def test_a_skipped_task_that_ignores_its_result_stores_none(bench, task, held):
    ignored = task("skip").apply_async((held,), ignore_result=True)
    task("skip").apply_async((held,)).get(timeout=20)
    wait_until(lambda: bench.misses(held) == 2)

    assert bench.app.AsyncResult(ignored.id).state == "PENDING"


def test_a_chord_waits_for_members_that_retry_on_one_key(bench, task):
    key, body = bench.key(), bench.key("body")
    members = [task("retry").si(key, {"value": n, "sleep": 0.1}) for n in range(5)]

    assert chord(members)(task("join").s(key=body)).get(timeout=60) == [0, 1, 2, 3, 4]
    assert bench.misses(key) > 0
    assert len(joined(bench, body)) == 1
    assert bench.ledger.overlaps(key) == []


@pytest.mark.parametrize(("policy", "failure"), [("raise", "Contended"), ("dead_letter", "DeadLettered")])
def test_a_member_that_gives_up_fails_its_chord(bench, task, held, policy, failure):
    body, errors = bench.key("body"), bench.key("errors")
    callback = task("join").s(key=body).on_error(task("errback").s(key=errors))
    result = chord([task(policy).si(held), task("retry").si(bench.key())])(callback)

    assert bench.outcome(result) == "FAILURE"
    assert held in str(result.result)
    wait_until(lambda: bench.ledger.facts("errback", key=errors), what="the error callback was told")
    (member,) = [part for part in result.parent.results if part.state == "FAILURE"]
    assert type(member.result).__name__ == failure
    assert joined(bench, body) == []


def test_a_raised_miss_fails_with_contended_that_names_key_and_holder(bench, held):
    result = bench.send("raise", held)

    with pytest.raises(Exception, match=f"job:{held}") as failure:
        result.get(timeout=20)
    assert type(failure.value).__name__ == "Contended"
