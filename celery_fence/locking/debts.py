"""
What the runs of this process owe one store, and who is told of it.

The heartbeat pays (`celery_fence.locking.owed`), and whoever asks for the same key before it has.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from celery_fence.errors import StoreUnavailable
from celery_fence.locking import events
from celery_fence.locking.green import teller_here
from celery_fence.locking.owed import Owed, worth
from celery_fence.locking.store import Gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_fence.locking.clock import Clock
    from celery_fence.locking.heartbeat import Heartbeat
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.store import Claim, Ending, ReleaseAnswer, Store

logger = logging.getLogger(__name__)


class Debts:
    """
    The calls that are owed to the store at *place*, made over *renewals* by the heartbeat.

    One heartbeat serves all stores of a process, and keys of one name may be in several: what is owed to
    one place is paid to no other.
    """

    def __init__(
        self,
        renewals: Store,
        place: object,
        *,
        heartbeat: Callable[[], Heartbeat],
        emit: Callable[[events.Event], None],
        clock: Clock,
    ) -> None:
        self._renewals = renewals
        self._place = place
        self._heartbeat = heartbeat
        self._emit = emit
        self._clock = clock

    def owe_release(self, lease: Lease, claim: Claim, ending: Ending | None, error: StoreUnavailable) -> Owed:
        """Have *lease* released as soon as the store can be reached, as *claim* and *ending* say, and that told."""
        since = self._clock()

        def paid(answer: ReleaseAnswer) -> None:
            outcome = "gone" if isinstance(answer, Gone) else "released"
            late = self._clock() - since
            self._emit(events.ReleasedLate(lease.source, lease.key, lease, outcome, late))

        return self.owe(
            lambda store: store.release(claim, lease.token, ending), claim, ending, error, paid=paid
        )

    def owe(
        self,
        call: Callable[[Store], object],
        claim: Claim,
        ending: Ending | None,
        error: StoreUnavailable,
        *,
        paid: Callable[[Any], None],
    ) -> Owed:
        """Have *call* made as soon as the store can be reached: the run of *claim* has ended and goes on."""
        _tell_unrecorded(claim, ending, error, logging.WARNING)
        tell = teller_here()
        owed = Owed(
            claim.key,
            self._place,
            call,
            until=self._clock() + worth(claim, ending),
            clock=self._clock,
            paid=functools.partial(tell, paid),
            unpaid=functools.partial(tell, _tell_unpaid, claim, ending),
        )
        try:
            self._heartbeat().note(self._renewals, owed)
        except RuntimeError:  # the machine has no thread to spare
            owed.tell()
        return owed

    def give_back(self, claim: Claim, cause: BaseException, store: Store) -> None:
        """
        Have released by owner what was, or may have been, granted before *cause* struck; the TTL is the rest.

        At once, at *store*, where the process is about to end (SystemExit and the like) or the store has just
        answered; else, as after a soft time limit, in the background.
        """
        error = StoreUnavailable("The question for it was interrupted.")
        if isinstance(cause, StoreUnavailable) or not isinstance(cause, Exception):
            try:
                store.release(claim, 0)
                return  # noqa: TRY300 - what follows is for those who couldn't
            except StoreUnavailable as unreachable:
                error = unreachable
                logger.warning(
                    "The lease on %r, if it was granted, isn't given back yet: its TTL ends it in any case. %s",
                    claim.key,
                    error,
                )
        self.owe(lambda store: store.release(claim, 0), claim, None, error, paid=lambda _: None)

    def pay_first(self, key: str, store: Store) -> None:
        """
        What this process owes for *key* comes before it asks *store* for it again.

        Else a copy that comes as soon as the store is back could be granted the key of a run
        whose end the store hasn't heard of. `StoreUnavailable` while that can't be had.
        """
        for owed in self._heartbeat().owed_for(key, self._place):
            owed.pay(store)


def _tell_unpaid(claim: Claim, ending: Ending | None, error: Exception) -> None:
    if not isinstance(error, StoreUnavailable):
        logger.error(
            "What a run owed the store for %r is given up: the call broke", claim.key, exc_info=error
        )
    _tell_unrecorded(claim, ending, error, logging.ERROR)


def _tell_unrecorded(claim: Claim, ending: Ending | None, error: Exception, level: int) -> None:
    """Say that work is done of which there is no record: a WARNING while it may come yet, an ERROR in the end."""
    if not (claim.record and ending is not None and ending.how == "returned"):
        return
    given_up = level == logging.ERROR
    logger.log(
        level,
        "The work of %r is done, but its record couldn't be written%s: another message would do it again. %s",
        claim.record,
        "" if given_up else " yet, and is tried again while this process lives",
        error,
    )
