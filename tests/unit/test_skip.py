"""The end of a message without its body: final, recognisable, and nobody waits for ever."""

from __future__ import annotations

import json

import pytest
from celery import chain, group

from celery_fence import FencedTask, is_skipped, policies
from celery_fence.task.skip import _inner_steps


@pytest.fixture
def task(app):
    def make(name="the task", **options):
        @app.task(base=FencedTask, bind=True, lock_key="job:<key>", name=name, **options)
        def body(self, key, mode="full", *, fencing_token):
            pytest.fail("the body ran")

        return body

    return make


@pytest.fixture
def skip(app, task, in_worker, occupy):
    """Skip a message with these facts; returns what is stored for it."""
    occupy("job:k", task_name="their task", task_id="their id", host="web-1")

    def skip(policy="skip", *, name="the task", **request):
        outcome = in_worker(task(miss_policy=policy, name=name), "k", id="mine", **request)
        assert outcome.state == "IGNORED"
        return app.AsyncResult("mine").get()

    return skip


def test_the_record_is_flat_and_of_plain_types_and_says_who_does_the_work(skip):
    record = skip()

    assert record == json.loads(json.dumps(record))
    assert not any(isinstance(value, dict | list) for value in record.values())
    assert {
        name: record[name] for name in ("reason", "key", "task", "task_id", "holder_task", "holder_task_id")
    } == {
        "reason": "held",
        "key": "job:k",
        "task": "the task",
        "task_id": "mine",
        "holder_task": "their task",
        "holder_task_id": "their id",
    }
    assert record["since"].startswith("20")
    assert "holder_ttl" not in record


@pytest.mark.parametrize("value", [None, False, 0, "", [], {"my": "own"}])
def test_a_result_of_the_policys_own_is_stored_as_it_is(skip, value):
    stored = skip(policies.Skip(result=value))

    assert stored == value
    assert not is_skipped(stored)


def test_a_callable_makes_the_result_from_the_bound_arguments_with_their_defaults(skip):
    assert skip(policies.Skip(result=lambda arguments: arguments)) == {"key": "k", "mode": "full"}


def test_a_callable_that_raises_makes_a_failure_that_names_it(task, in_worker, occupy):
    occupy("job:k")
    outcome = in_worker(task(miss_policy=policies.Skip(result=lambda arguments: arguments["nope"])), "k")

    assert outcome.state == "FAILURE"
    assert "Skip(result=...) of task 'the task' failed: KeyError: 'nope'" in str(outcome.value)
    assert isinstance(outcome.value.__cause__, KeyError)


@pytest.mark.parametrize("value", [None, "skipped", [], {}, {"celery_fence": "other"}, {"skipped": True}, 7])
def test_nothing_else_is_taken_for_a_skip(value):
    assert not is_skipped(value)


def test_the_rest_of_a_chain_ends_with_the_same_record_and_is_not_sent(app, skip, sent):
    @app.task(name="plain")
    def plain(value): ...

    record = skip(chain=[dict(plain.s().set(task_id="next"))])

    assert app.AsyncResult("next").get() == record
    assert sent == []


def test_a_chain_that_goes_on_gets_the_record_as_its_argument(app, skip, sent):
    @app.task(name="plain")
    def plain(value): ...

    record = skip(policies.Skip(chain="continue"), chain=[dict(plain.s().set(task_id="next"))])

    ((headers, body),) = sent
    assert (headers["id"], headers["parent_id"]) == ("next", "mine")
    assert body[0] == (record,)


def test_a_link_runs_only_where_the_chain_goes_on(app, skip, sent):
    @app.task(name="plain")
    def plain(value): ...

    skip(callbacks=[dict(plain.s())])
    assert sent == []
    skip(policies.Skip(chain="continue"), name="goes on", callbacks=[dict(plain.s())])
    assert len(sent) == 1


def test_no_result_is_stored_where_the_caller_wanted_none(app, task, in_worker, occupy):
    occupy("job:k")
    in_worker(task(miss_policy="skip"), "k", id="ignored", ignore_result=True)

    assert app.AsyncResult("ignored").state == "PENDING"


def test_the_steps_of_complex_steps_are_found(app):
    @app.task(name="plain")
    def plain(): ...

    steps = [dict(plain.si()), dict(plain.si())]

    assert len(_inner_steps(dict(group(steps, app=app)))) == 2
    assert len(_inner_steps(dict(chain(*[plain.si(), plain.si()], app=app)))) == 2
    assert [each["task"] for each in _inner_steps(dict(group(steps, app=app) | plain.si()))] == ["plain"]
    assert _inner_steps(steps[0]) == []
