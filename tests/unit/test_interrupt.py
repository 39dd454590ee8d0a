"""Stopping a body that lost its lease: in the main thread by a signal, and nowhere but in the body."""

from __future__ import annotations

import contextlib
import signal
import threading
import time

import pytest
from celery.exceptions import Ignore, Reject

from celery_fence import FencedTask
from celery_fence.errors import LeaseLost
from celery_fence.task.interrupt import Body, interrupter, interruptible

INTERRUPT = getattr(signal, "SIGUSR2", None)

pytestmark = pytest.mark.skipif(INTERRUPT is None, reason="also on CI: this system has no SIGUSR2")


@pytest.fixture
def lost(make_lease):
    lease = make_lease(key="job:1")
    lease.lose("taken")
    return lease


def from_another_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def run(block, *bodies):
    """Run *block* as a body in all of these, the innermost last."""
    with contextlib.ExitStack() as stack:
        for body in bodies:
            stack.enter_context(interruptible(body, wanted=True))
        block()


def sleep():
    time.sleep(30)


def compute():
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize("work", [sleep, compute])
def test_a_body_is_stopped_in_the_middle_of_its_work(lost, work):
    body = Body()
    before = time.monotonic()
    with pytest.raises(LeaseLost, match="job:1"):
        run(lambda: (from_another_thread(interrupter(body), lost), work()), body)

    assert time.monotonic() - before < 10


def test_after_its_body_a_loss_interrupts_nothing(lost):
    body = Body()
    with interruptible(body, wanted=True):
        pass
    from_another_thread(interrupter(body), lost).join(5)

    assert body.lost is lost


def test_a_body_is_stopped_once_and_may_clean_up(lost):
    body, cleaned = Body(), []

    def works():
        try:
            from_another_thread(interrupter(body), lost)
            sleep()
        finally:
            from_another_thread(interrupter(body), lost).join(5)  # a second one
            cleaned.append(True)

    with pytest.raises(LeaseLost):
        run(works, body)
    assert cleaned == [True]


def test_a_nested_body_that_is_well_is_stopped_for_the_outer_one_that_is_lost(lost):
    outer, inner = Body(), Body()
    with pytest.raises(LeaseLost):
        run(lambda: (from_another_thread(interrupter(outer), lost), sleep()), outer, inner)


def test_a_loss_before_the_body_began_stops_it_too(lost):
    body = Body()
    from_another_thread(interrupter(body), lost).join(5)
    with pytest.raises(LeaseLost), interruptible(body, wanted=True):
        pass


def cleans_up_in_vain():
    raise OSError("the connection is busy")


def raised_from(loss):
    raise ValueError("my own") from loss


class TestABodyThatIsStopped:
    """In a worker, in the middle of its work."""

    @pytest.fixture
    def stopped(self, app, in_worker):
        """The outcome of a run that is stopped, and then does *afterwards* with its loss."""

        def stopped(afterwards, **options):
            @app.task(base=FencedTask, bind=True, lock_key="k", name="stopped", **options)
            def task(self):
                try:
                    from_another_thread(self.lease.lose, "taken")
                    sleep()
                except LeaseLost as loss:
                    afterwards(loss)

            return in_worker(task)

        return stopped

    def test_and_fails_to_clean_up_has_lost_its_lease_all_the_same(self, stopped, sent):
        """As when a rollback meets a connection whose query was stopped."""

        def rolls_back(_loss):
            try:
                cleans_up_in_vain()
            except OSError as error:
                raise RuntimeError("a library's own words") from error

        assert (stopped(rolls_back).state, len(sent)) == ("RETRY", 1)

    def test_and_fails_to_clean_up_fails_with_the_loss_where_the_policy_says_so(self, stopped):
        outcome = stopped(lambda _: cleans_up_in_vain(), lost_policy="raise")

        assert (outcome.state, type(outcome.value)) == ("FAILURE", LeaseLost)

    @pytest.mark.parametrize("word", [ValueError, Ignore, Reject])
    def test_may_have_the_last_word(self, stopped, sent, word):
        def says(loss):
            if word is ValueError:
                raised_from(loss)
            raise word

        assert type(stopped(says).value) is word
        assert sent == []


def test_where_nobody_wants_it_no_handler_is_set():
    before = signal.getsignal(INTERRUPT)
    with interruptible(Body(), wanted=False):
        assert signal.getsignal(INTERRUPT) is before
