"""
Connections of our own to one server, and the queue for them.

A thousand greenlets that begin at once need no thousand connections: a few dozen that go round are
as fast, cost this process and the server less, and leave room for other workers.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_fence.errors import ConfigError
from celery_fence.locking.native import new_lock
from celery_fence.stores.redis.failures import AllBusy
from celery_fence.stores.redis.punctual import Deadline, Punctual
from celery_fence.stores.redis.urls import Address

LOOK = 0.1
"""Seconds after which who waits for a connection looks whether one was lost, of which nobody told."""


class Loan:
    """
    A connection that is lent.

    It counts for as long as its borrower has it. One who is struck (a soft time limit, an exception
    thrown into its thread) between borrowing and giving back has given back by losing it.
    """

    __slots__ = ("__weakref__", "connection")

    connection: Any


class Turn:
    """
    One asker's place in the queue for a connection, worth nothing from *until* on.

    So whoever is struck in the queue, and wherever, keeps the others waiting no longer than it would have waited.
    """

    __slots__ = ("bell", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        # Taken until somebody rings; of the kind that lets other greenlets run meanwhile.
        self.bell = threading.Lock()
        self.bell.acquire()

    def ring(self) -> None:
        """Wake the asker, if it isn't woken already."""
        if self.bell.locked():
            self.bell.release()


class Connections:
    """
    At most *limit* connections to one server, the idle ones kept for the next asker.

    Who finds none waits, and is served in the order of coming: among hundreds of greenlets that ask
    again and again, one that had to compete each time would wait many times as long as the others.
    """

    _lent: set[weakref.ref[Loan]]

    def __init__(self, address: Address, *, timeout: float, limit: int) -> None:
        kind = address.connection_class
        self._class = type(f"Punctual{kind.__name__}", (Punctual, kind), {})
        self._options = _connection_options(address)
        self._timeout = timeout
        self._limit = limit
        self._description = address.description
        self._start_empty()
        # Wrong options are found now, not in the first task.
        self._make()

    def take(self, until: float = math.inf) -> Loan:
        """
        An idle connection or a new one, for a call that is over by *until*; not necessarily connected yet.

        Waits for one that another asker gives back, but not into the last time-out before *until*, which
        the call itself may need: else each of many would come so late that it failed, and its connection
        with it. `AllBusy` where nobody gives one back by then.
        """
        if self._pid != os.getpid():
            # What is idle here is the parent's. Redis-py closes such a socket without ending the session.
            self._start_empty()
        loan, turn = Loan(), Turn(until - self._timeout)
        try:
            while not self._lend(loan, turn):
                self._wait(turn)
        except BaseException:
            self._leave(turn)
            raise
        try:
            loan.connection = self._idle.pop()
        except IndexError:
            loan.connection = self._make()
        loan.connection.deadline.at = until
        return loan

    def give_back(self, loan: Loan, *, healthy: bool) -> None:
        """Take the connection back: kept when *healthy*, else closed."""
        try:
            if healthy and loan.connection.pid == self._pid:
                loan.connection.used = True
                self._idle.append(loan.connection)
            else:
                _disconnect(loan.connection)
        finally:
            with self._lock:
                self._lent.discard(weakref.ref(loan))
                self._wake_first()

    def _lend(self, loan: Loan, turn: Turn) -> bool:
        """Whether *loan* is within the limit, and nobody came before; else *turn* is rung when it is next."""
        with self._lock:
            if self._first_in_line(turn) is not turn or not self._has_room():
                self._waiting.setdefault(turn)
                return False
            self._waiting.pop(turn, None)
            self._lent.add(weakref.ref(loan))
            self._wake_first()  # two may have been given back before this one was awake
            return True

    def _wait(self, turn: Turn) -> None:
        seconds = turn.until - time.monotonic()
        if seconds <= 0:
            raise AllBusy(f"none of {self._limit} was given back in time")
        turn.bell.acquire(timeout=min(seconds, LOOK))

    def _leave(self, turn: Turn) -> None:
        """Wait no longer: it may have been rung for this one, and isn't taken."""
        with self._lock:
            self._waiting.pop(turn, None)
            self._wake_first()

    def _first_in_line(self, newcomer: Turn | None = None) -> Turn | None:
        now = time.monotonic()
        while self._waiting:
            first = next(iter(self._waiting))
            if first.until > now:
                return first
            self._waiting.pop(first)
        return newcomer

    def _has_room(self) -> bool:
        if len(self._lent) >= self._limit:
            self._lent = {each for each in self._lent if each() is not None}
        return len(self._lent) < self._limit

    def _wake_first(self) -> None:
        first = self._first_in_line()
        if first is not None and len(self._lent) < self._limit:
            first.ring()

    def drop_idle(self) -> None:
        """Close the connections that nobody is using."""
        if self._pid != os.getpid():
            self._start_empty()
        while self._idle:
            with suppress(IndexError):  # another thread took it
                _disconnect(self._idle.pop())

    def _start_empty(self) -> None:
        # No semaphore: what is thrown into a thread within its Python code would leave it taken.
        self._lock = new_lock()
        self._idle: list[Any] = []
        self._lent = set()
        self._waiting: dict[Turn, None] = {}
        self._pid = os.getpid()

    def _make(self) -> Any:
        try:
            connection = self._class(**self._options)
        except (TypeError, ValueError, exceptions.RedisError) as error:
            raise ConfigError(
                f"fence_url: an option of {self._description} can't be used: {error}"
            ) from error
        connection.deadline = Deadline(self._timeout)
        # CLIENT SETINFO, one name or the other by the version of redis-py: two round trips that nobody needs.
        connection.driver_info = connection.lib_name = connection.lib_version = None
        return connection


def _connection_options(address: Address) -> dict[str, Any]:
    options = {
        "client_name": "celery-fence",
        "protocol": 2,
        **address.options,
        # The default of a connection up to 8.1; asking again is our own business, whatever comes.
        "retry": Retry(NoBackoff(), 0),
    }
    if "path" not in options:
        options = {"socket_keepalive": True, **options}
    return options


def _disconnect(connection: Any) -> None:
    # It is thrown away: that it can't even be closed is no news.
    with suppress(exceptions.RedisError, OSError):
        connection.disconnect()
