"""A guard asks who writes, and a run whose write was refused has lost its lease."""

from __future__ import annotations

import logging

import pytest

from celery_fence import FencedTask, current_lease, signals
from celery_fence.errors import ConfigError, ScopeMismatch, StaleToken, UnfencedWrite
from celery_fence.fencing.writer import Writer, is_stale, let_pass, refuse, writer_for, writer_of
from celery_fence.locking.current import Frame, entered
from celery_fence.locking.events import StaleWriteRefused
from celery_fence.locking.null_lease import NullLease
from celery_fence.observers.tally import Label
from celery_fence.task.install import runtime


@pytest.fixture
def told():
    return []


@pytest.fixture
def lease(make_lease, told):
    return make_lease(key="job:1", emit=told.append, source="the task")


def write(token, seen, owner="another"):
    """What the body of a task does, whose guard has seen a newer token."""
    refuse(writer_of(), scope="job:k", seen=seen, seen_owner=owner, what="UPDATE payouts")


class TestWhoWrites:
    def test_the_innermost_lease(self, lease, make_lease):
        other = make_lease(key="job:2")
        with entered(Frame(lease, None)), entered(Frame(other, None)):
            assert (writer_of().key, writer_of().token, writer_of().owner) == (
                "job:2",
                other.token,
                other.owner,
            )
            assert writer_of(lease).key == "job:1"

    def test_for_a_scope_the_innermost_lease_with_that_key(self, lease, make_lease):
        with entered(Frame(lease, None)), entered(Frame(make_lease(key="job:2"), None)):
            assert writer_for("job:1").token == lease.token

    def test_a_lease_on_another_key_is_an_error(self, lease):
        with entered(Frame(lease, None)), pytest.raises(ScopeMismatch) as mismatch:
            writer_for("job:2")

        assert (mismatch.value.scope, mismatch.value.key) == ("job:2", "job:1")

    @pytest.mark.parametrize("ask", [writer_of, lambda **given: writer_for("job:1", **given)])
    def test_nobody_is_an_error_but_in_shadow(self, ask):
        with pytest.raises(UnfencedWrite, match="no lease here"):
            ask()

        assert ask(mode="shadow").token is None

    @pytest.mark.parametrize("ask", [writer_of, lambda **given: writer_for("job:1", **given)])
    def test_a_run_without_a_token_is_an_error_but_in_shadow(self, ask):
        with entered(Frame(NullLease(), None)):
            with pytest.raises(UnfencedWrite, match="mode='shadow'"):
                ask()
            for mode in ("shadow", "off"):
                assert (ask(mode=mode).token, ask(mode=mode).enforces) == (None, False)

    def test_in_shadow_a_lease_on_another_key_has_no_token_to_show(self, lease):
        with entered(Frame(lease, None)):
            writer = writer_for("job:2", mode="shadow")

        assert (writer.token, writer.key) == (None, "job:1")

    def test_the_mode_is_that_of_the_guard_else_of_the_task(self, lease):
        with entered(Frame(lease, None, mode="shadow")):
            assert writer_of().mode == writer_of(lease).mode == "shadow"
            assert writer_of(mode="off").mode == "off"
        assert writer_of(lease).mode == "enforce"

    def test_an_unknown_mode_is_an_error(self, lease):
        with pytest.raises(ConfigError, match="'enforce', 'shadow', 'off'"):
            writer_of(lease, mode="shadows")

    def test_an_owner_that_is_too_long_is_its_digest(self, lease):
        first, second = (writer_of(Writer("k", 1, None)) for _ in range(2))
        assert first == second

        long = writer_of(_shown("a" * 64 + "x")).owner
        assert len(long) == 64
        assert long != writer_of(_shown("a" * 64 + "y")).owner
        assert writer_of(_shown("a" * 64)).owner == "a" * 64


def _shown(owner):
    class Shown:
        key, token = "k", 1

    Shown.owner = owner
    return Shown()


@pytest.mark.parametrize(
    ("seen", "owner", "stale"),
    [
        (None, None, False),
        (4, "another", False),
        (5, "me", False),
        (5, "another", True),
        (5, None, True),
        (6, "another", True),
        (6, "me", True),
    ],
)
def test_stale_is_an_older_token_or_an_equal_one_of_another_owner(seen, owner, stale):
    assert is_stale(Writer("job:1", 5, "me"), seen, owner) is stale


class TestARefusal:
    def test_raises_and_tells_once(self, lease, told):
        with pytest.raises(StaleToken) as refusal:
            refuse(writer_of(lease), scope="job:1", seen=9, seen_owner="another", what="UPDATE payouts")

        assert (refusal.value.scope, refusal.value.token, refusal.value.seen) == ("job:1", lease.token, 9)
        assert "roll back, stop" in str(refusal.value)
        expected = (
            "the task",
            "job:1",
            lease,
            "job:1",
            lease.token,
            lease.owner,
            9,
            "another",
            "UPDATE payouts",
            True,
        )
        assert told == [StaleWriteRefused(*expected)]

    @pytest.mark.parametrize("mode", ["shadow", "off"])
    def test_only_tells_in_shadow(self, lease, told, mode):
        refuse(writer_of(lease, mode=mode), scope="job:1", seen=9)
        let_pass(writer_for("job:2", lease, mode=mode), scope="job:2")

        assert [(event.refused, event.seen, event.token) for event in told] == [
            (False, 9, lease.token),
            (False, None, None),
        ]

    def test_is_a_signal_a_warning_and_a_count(self, app, in_worker, caplog):
        heard = []

        def hear(sender, **facts):
            heard.append((sender.name, facts["key"], facts["scope"], facts["seen"], facts["refused"]))

        task = fenced(app, lambda: write(current_lease().token, 2**60), lost_policy="raise")
        signals.stale_write_refused.connect(hear)
        with caplog.at_level(logging.WARNING, "celery_fence"):
            outcome = in_worker(task, "k")
        signals.stale_write_refused.disconnect(hear)

        assert (outcome.state, type(outcome.value)) == ("FAILURE", StaleToken)
        assert heard == [(task.name, "job:k", "job:k", 2**60, True)]
        line = next(record for record in caplog.records if "UPDATE payouts" in record.getMessage())
        assert (line.levelname, line.key, line.task_name) == ("WARNING", "job:k", task.name)
        assert line.token == outcome.value.token
        assert line.task_id
        assert runtime(app).tally.counts == {Label("stale_write", task.name, "refused"): 1}

    def test_of_a_write_without_a_token_is_told_without_one(self, caplog, app):
        null = NullLease(None, runtime(app).emit)
        with caplog.at_level(logging.WARNING, "celery_fence"):
            let_pass(writer_of(null, mode="shadow"), scope="job:1", what="INSERT")

        (line,) = caplog.records
        assert "Let pass, and would have refused, INSERT with no token for 'job:1'" in line.getMessage()
        assert (line.token, line.owner, line.held_for) == (None, None, None)
        assert runtime(app).tally.counts == {Label("stale_write", "", "let_pass"): 1}

    def test_is_logged_where_no_app_is_known(self, caplog):
        with caplog.at_level(logging.WARNING), pytest.raises(StaleToken):
            refuse(Writer("job:1", 5, "me"), scope="job:1", seen=9)

        (record,) = caplog.records
        assert (record.name, record.levelname, record.key, record.token) == (
            "celery_fence",
            "WARNING",
            "job:1",
            5,
        )
        assert record.getMessage().startswith("Refused write with token 5 for 'job:1'")


def fenced(app, body, **options):
    @app.task(base=FencedTask, lock_key="job:<which>", **options)
    def job(which):
        body()

    return job


class TestARunThatWroteStale:
    def test_has_lost_its_lease_and_is_sent_again(self, app, in_worker, sent):
        outcome = in_worker(fenced(app, lambda: write(current_lease().token, 2**60)), "k")

        assert outcome.state == "RETRY"
        assert len(sent) == 1

    def test_is_not_retried_by_autoretry(self, app, in_worker, sent):
        task = fenced(
            app, lambda: write(current_lease().token, 2**60), autoretry_for=(Exception,), lost_policy="raise"
        )

        assert in_worker(task, "k").state == "FAILURE"
        assert sent == []

    def test_frees_its_key(self, app, in_worker, leases):
        in_worker(fenced(app, lambda: write(current_lease().token, 2**60), lost_policy="raise"), "k")

        assert leases.holder("job:k") is None

    def test_has_lost_nothing_if_the_token_was_not_its_own(self, app, in_worker, sent):
        """As in a task that looks at the tokens of the messages it gets."""

        def look():
            refuse(Writer("event:1", 5, "a sender"), scope="event:1", seen=9)

        outcome = in_worker(fenced(app, look, autoretry_for=(Exception,)), "k")

        assert (outcome.state, type(outcome.value)) == ("FAILURE", StaleToken)
        assert sent == []

    def test_may_catch_it_and_end_as_it_likes(self, app, in_worker):
        def catch():
            with pytest.raises(StaleToken):
                write(current_lease().token, 2**60)

        assert in_worker(fenced(app, catch), "k").state == "SUCCESS"
