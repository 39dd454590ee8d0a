"""Who claims what: the running task's key and lease, and what becomes of a claim that isn't granted."""

from __future__ import annotations

import sqlite3
import uuid
from datetime import timedelta

import pytest
from kombu.serialization import registry

from celery_fence import ConfigError, FencedTask, StaleToken, current_lease, hold
from celery_fence.errors import AlreadyDone, UnfencedWrite
from celery_fence.fencing.idempotency import (
    claim,
    create_records,
    delete_records,
    find_record,
    list_records,
    once,
)
from celery_fence.fencing.writer import Writer
from celery_fence.locking import current
from celery_fence.locking.null_lease import NullLease


@pytest.fixture
def database():
    connection = sqlite3.connect(":memory:")
    create_records(connection)
    connection.execute("CREATE TABLE effects (work TEXT)")
    connection.commit()
    yield connection
    connection.close()


def effect(database, work):
    database.execute("INSERT INTO effects (work) VALUES (?)", [work])
    return {"charged": work}


def effects(database):
    return [row[0] for row in database.execute("SELECT work FROM effects")]


def writer(token=5, owner="somebody", mode="enforce", source=None):
    return Writer("tenant:7", token, owner, mode=mode, source=source)


def fenced(app, body, **options):
    return app.task(base=FencedTask, bind=True, shared=False, name=f"task-{uuid.uuid4().hex}", **options)(
        body
    )


def pay_with(database, claims):
    def pay(self, job):
        with database:
            record = claim(database)
            claims.append(find_record(database, f"payment:{job}"))
            return record.complete(effect(database, job))

    return pay


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (Exception,), "max_retries": 3}])
def test_another_message_with_the_key_ends_with_the_recorded_result(app, database, options):
    claims = []
    pay = fenced(
        app, pay_with(database, claims), lock_key="job:<job>", idempotency_key="payment:<job>", **options
    )
    first = pay.apply(("7",))
    app.conf.fence_url = (
        f"memory://{uuid.uuid4().hex}"  # as after a flush: the store knows nothing of the first run
    )

    second = pay.apply(("7",))

    assert [first.get(), second.get()] == [{"charged": "7"}] * 2
    assert effects(database) == ["7"]
    assert [(each.key, each.lock_key, each.done) for each in claims] == [("payment:7", "job:7", None)]


AGAIN = {
    "complete": lambda database, record: record.complete(2),
    "claim": lambda database, record: claim(database),
}


class TestARunThatMeetsItsOwnRecord:
    """Only the next one can tell whether that was committed, so it is no answer."""

    @pytest.fixture(params=AGAIN)
    def pay(self, app, database, request):
        """A task that completes its record, and then, in its first run, asks again in the same transaction."""
        asks = [AGAIN[request.param]]

        def pay(self, job):
            with database:
                record = claim(database)
                result = record.complete(effect(database, job))
                if asks:
                    asks.pop()(database, record)
            return result

        return fenced(app, pay, lock_key="job:<job>", idempotency_key="payment:<job>")

    def test_in_the_same_transaction_is_sent_again_and_then_does_what_was_rolled_back(
        self, pay, database, in_worker, sent
    ):
        first = in_worker(pay, "7")
        assert (first.state, effects(database), len(sent)) == ("RETRY", [], 1)

        assert in_worker(pay, "7").value == {"charged": "7"}
        assert effects(database) == ["7"]

    def test_in_a_direct_call_is_an_error_and_the_work_can_be_done(self, pay, database):
        with pytest.raises(AlreadyDone, match="by this very run"):
            pay("7")
        assert effects(database) == []

        assert pay("7") == {"charged": "7"}
        assert effects(database) == ["7"]

    def test_of_an_earlier_transaction_is_sent_again_and_then_answered(self, app, database, in_worker, sent):
        """As when the reply to a COMMIT was lost, and the body does its transaction once more."""

        def pay(self, job):
            for _ in range(2):
                with database:
                    claim(database).complete(effect(database, job))

        task = fenced(app, pay, lock_key="job:<job>", idempotency_key="payment:<job>")
        assert (in_worker(task, "7").state, len(sent)) == ("RETRY", 1)

        in_worker(task, "7", id="again")
        assert app.AsyncResult("again").result == {"charged": "7"}
        assert effects(database) == ["7"]


def test_a_hold_inside_the_body_changes_nothing_of_the_claim(app, database):
    def pay(self, job):
        with hold("account:1", app=app), database:
            claim(database).complete(None)
        return self.lease.token

    token = fenced(app, pay, lock_key="job:<job>", idempotency_key="payment:<job>").apply(("7",)).get()

    found = find_record(database, "payment:7")
    assert (found.lock_key, found.token) == ("job:7", token)


def test_a_key_of_one_s_own_is_claimed_under_the_innermost_lease(app, database):
    def pay(self, job):
        with hold("account:1", app=app) as lease, database:
            claim(database, key="account:1/closed").complete(None)
            return lease.token

    token = fenced(app, pay, lock_key="job:<job>", idempotency_key="payment:<job>").apply(("7",)).get()

    found = find_record(database, "account:1/closed")
    assert (found.lock_key, found.token) == ("account:1", token)


def test_a_task_without_an_idempotency_key_can_t_claim_but_has_steps(app, database):
    def batch(self, job):
        with pytest.raises(ConfigError, match="idempotency_key"):
            claim(database)
        with database:
            return [once(database, f"mail:{number}", effect, database, str(number)) for number in (1, 2, 1)]

    task = fenced(app, batch, lock_key="job:<job>")
    answers = task.apply(("7",), task_id="one").get()

    assert answers == [{"charged": "1"}, {"charged": "2"}, {"charged": "1"}]
    assert task.apply(("7",), task_id="one").get() == answers
    assert effects(database) == ["1", "2"]
    task.apply(("7",), task_id="another")
    assert effects(database) == ["1", "2", "1", "2"]


def test_what_replaces_a_message_has_steps_of_its_own(app, database, in_worker):
    """It has the same id, and goes on where the other one ended."""

    def page(self, number):
        with database:
            once(database, "page", effect, database, number)

    task = fenced(app, page, lock_key="job")
    for number, nesting in (("1", 0), ("2", 1), ("3", 1)):
        in_worker(task, number, id="one", replaced_task_nesting=nesting)

    assert effects(database) == ["1", "2"]


def test_steps_belong_to_the_idempotency_key_where_there_is_one(app, database):
    def batch(self, job):
        with database:
            return once(database, "mail", effect, database, self.request.id)

    task = fenced(app, batch, lock_key="job:<job>", idempotency_key="batch:<job>")
    first = task.apply(("7",), task_id="one").get()
    app.conf.fence_url = f"memory://{uuid.uuid4().hex}"

    assert task.apply(("7",), task_id="another").get() == first
    assert [(each.key, each.step) for each in list_records(database)] == [("batch:7", "mail")]


def test_nothing_is_claimed_without_a_lease(database):
    with pytest.raises(UnfencedWrite, match="hold"):
        claim(database, key="payment:7")

    assert list(list_records(database)) == []


def test_a_run_without_a_token_claims_nothing(app, database):
    task = fenced(app, lambda self: None, lock_key="job")
    frame = current.Frame(NullLease(task, lambda event: None), task, None, record="payment:7")
    with current.entered(frame), pytest.raises(UnfencedWrite, match="outage_policy"):
        claim(database)

    assert list(list_records(database)) == []


def test_a_key_must_be_a_text(database):
    with pytest.raises(ConfigError, match="key=7 must be a text"):
        claim(database, key=7, lease=writer())


@pytest.mark.parametrize("step", ["", None, 7])
def test_a_step_needs_a_name(database, step):
    with pytest.raises(ConfigError, match="step"):
        once(database, step, list, key="batch:7", lease=writer())


@pytest.mark.parametrize("mode", ["shadow", "off"])
def test_where_a_guard_only_watches_nothing_is_stopped_and_the_record_stays(database, mode):
    claim(database, key="done", lease=writer()).complete("first")
    claim(database, key="claimed", lease=writer(9))

    for key in ("done", "claimed"):
        claimed = claim(database, key=key, lease=writer(6, mode=mode))
        assert not claimed.kept
        assert claimed.complete("second") == "second"

    assert find_record(database, "done").token == 5
    assert find_record(database, "claimed").token == 9
    assert find_record(database, "claimed").done is None


def test_a_stale_claim_is_told_of_in_shadow_mode(database):
    claim(database, key="claimed", lease=writer(9))
    told = []

    claim(database, key="claimed", lease=Writer("tenant:7", 6, "other", mode="shadow", emit=told.append))

    assert [(event.scope, event.token, event.seen, event.refused) for event in told] == [
        ("claimed", 6, 9, False)
    ]


def test_a_run_without_a_token_is_told_of_and_recorded_nowhere_in_shadow_mode(database):
    told = []
    lease = Writer("", None, None, mode="shadow", emit=told.append)

    assert claim(database, key="a", lease=lease).complete("result") == "result"

    assert [(event.scope, event.token, event.refused) for event in told] == [("a", None, False)]
    assert list(list_records(database)) == []


def test_mode_off_asks_no_database():
    assert claim("no connection", key="a", lease=writer(mode="off")).complete("result") == "result"


class Untold(sqlite3.Cursor):
    """A cursor of a driver that can't tell how many rows were changed."""

    rowcount = -1


class Untelling(sqlite3.Connection):
    """A connection whose cursors are such."""

    def cursor(self, factory=Untold):
        return super().cursor(factory)


def test_a_driver_that_can_t_count_rows_is_not_believed_but_asked(tmp_path):
    connection = sqlite3.connect(tmp_path / "untold.db", factory=Untelling)
    create_records(connection)
    stale = claim(connection, key="a", lease=writer(5))
    claim(connection, key="a", lease=writer(6)).complete("newer")
    with pytest.raises(AlreadyDone):
        stale.complete("late")
    claimed = claim(connection, key="b", lease=writer(5))
    claim(connection, key="b", lease=writer(6))
    with pytest.raises(StaleToken):
        claimed.complete("late")

    assert find_record(connection, "a").result.endswith('"newer"')
    connection.close()


@pytest.mark.parametrize("serializer", ["json", "pickle", "msgpack", "yaml"])
def test_a_result_is_kept_by_the_serializer_of_results(app, database, serializer):
    app.conf.update(result_serializer=serializer, accept_content=[serializer])
    value = {"text": "ü\n\x00'%s:x", "list": [1, None, 2.5]}
    claim(database, key="a", lease=writer(source=app)).complete(value)

    with pytest.raises(AlreadyDone) as done:
        claim(database, key="a", lease=writer(6, source=app))

    assert done.value.result == value
    assert find_record(database, "a").result.partition(";")[0] == registry.name_to_type[serializer]


def test_what_the_app_doesn_t_accept_is_not_read(app, database):
    app.conf.update(result_serializer="pickle", accept_content=["pickle"])
    claim(database, key="a", lease=writer(source=app)).complete([1])
    app.conf.update(result_serializer="json", accept_content=["json"])

    with pytest.raises(AlreadyDone, match="x-python-serialize") as done:
        claim(database, key="a", lease=writer(6, source=app))

    assert not done.value.has_result


@pytest.mark.parametrize("damaged", ["", "nonsense", "application/json;utf-8\n{", None])
def test_a_damaged_result_doesn_t_make_the_work_be_done_again(database, damaged):
    once(database, "mail", effect, database, "1", key="a", lease=writer())
    database.execute("UPDATE fence_records SET result = ?", [damaged])

    with pytest.raises(AlreadyDone, match="isn't to be had") as done:
        once(database, "mail", effect, database, "2", key="a", lease=writer(6))

    assert (done.value.record, done.value.has_result) == ("a/mail", False)
    assert effects(database) == ["1"]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, timedelta(days=1)])
def test_a_retention_that_can_t_be_meant_deletes_nothing(database, seconds):
    claim(database, key="a", lease=writer()).complete(None)

    with pytest.raises(ConfigError, match="older_than"):
        delete_records(database, older_than=seconds)

    assert find_record(database, "a")


def test_the_lease_given_goes_before_the_one_here(app, database):
    with hold("account:1", app=app):
        assert current_lease() is not None
        claim(database, key="a", lease=writer(5))

    assert find_record(database, "a").lock_key == "tenant:7"
