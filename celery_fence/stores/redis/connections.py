"""
Connections of our own to one server, and the moment by which each wait on them is over.

redis-py gives each single wait its time: a fresh connection has one for TCP, for TLS, for each step of
the handshake and for each piece of a reply, so a slow or dripping server could take any number of
them. Here they share what is left of the call.
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
from celery_fence.stores.redis.urls import Address

LOOK = 0.1
"""Seconds after which who waits for a connection looks whether one was lost, of which nobody told."""


class Deadline:
    """When a call must be over (`at`, by the monotonic clock); no wait of it is longer than *longest* seconds."""

    __slots__ = ("_longest", "at")

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self.at = math.inf

    def left(self) -> float:
        """Seconds for the next wait; `TimeoutError` where there are none."""
        left = min(self._longest, self.at - time.monotonic())
        if left <= 0:
            raise TimeoutError("all the time for this call is used up")
        return left


class PunctualSocket:
    """*socket*, whose waits end by *deadline*, however many bytes the other side lets drip."""

    __slots__ = ("_deadline", "_socket")

    def __init__(self, socket: Any, deadline: Deadline) -> None:
        self._socket = socket
        self._deadline = deadline

    def recv(self, *args: Any) -> Any:
        """As of a socket; within what is left."""
        self._socket.settimeout(self._deadline.left())
        return self._socket.recv(*args)

    def recv_into(self, *args: Any) -> Any:
        """As of a socket; within what is left."""
        self._socket.settimeout(self._deadline.left())
        return self._socket.recv_into(*args)

    def sendall(self, data: Any) -> None:
        """As of a socket; within what is left."""
        self._socket.settimeout(self._deadline.left())
        self._socket.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class Punctual:
    """
    Mixed into a connection class of redis-py: it connects, and waits, by a `Deadline`.

    *used*: it has given an answer before, so it may have been forgotten by the other side or by a firewall.
    """

    deadline = Deadline(math.inf)
    used = False

    @property
    def socket_timeout(self) -> float:
        """What redis-py takes for the time of each wait."""
        return self.deadline.left()

    @socket_timeout.setter
    def socket_timeout(self, value: float) -> None:
        """Redis-py's constructor sets it, in some versions."""

    socket_connect_timeout = socket_timeout

    def _connect(self) -> PunctualSocket:
        return PunctualSocket(super()._connect(), self.deadline)  # type: ignore[misc]


class Loan:
    """
    A connection that is lent.

    It counts for as long as its borrower has it. One who is struck (a soft time limit, an exception
    thrown into its thread) between borrowing and giving back has given back by losing it.
    """

    __slots__ = ("__weakref__", "connection")

    connection: Any


class Connections:
    """At most *limit* connections to one server, the idle ones kept for the next asker."""

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

        Waits for one that another asker gives back; `AllBusy` where nobody does by then.
        """
        if self._pid != os.getpid():
            # What is idle here is the parent's. Redis-py closes such a socket without ending the session.
            self._start_empty()
        loan, bell = Loan(), _silent_bell()
        while not self._lend(loan, bell):
            self._wait(bell, until - time.monotonic())
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
                self._wake_one()

    def _lend(self, loan: Loan, bell: Any) -> bool:
        """Whether *loan* is within the limit; else *bell* rings when another is given back."""
        with self._lock:
            if len(self._lent) >= self._limit:
                self._lent = _alive(self._lent)
            if len(self._lent) >= self._limit:
                self._waiting[bell] = None
                return False
            self._waiting.pop(bell, None)
            self._lent.add(weakref.ref(loan))
            return True

    def _wait(self, bell: Any, seconds: float) -> None:
        if seconds <= 0:
            with self._lock:
                self._waiting.pop(bell, None)
            raise AllBusy(f"none of {self._limit} was given back in time")
        bell.acquire(timeout=min(seconds, LOOK))

    def _wake_one(self) -> None:
        if self._waiting:
            self._waiting.pop(bell := next(iter(self._waiting)))
            if bell.locked():  # it may have been rung already, as its owner's patience ended
                bell.release()

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
        self._waiting: dict[Any, None] = {}
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


def _silent_bell() -> Any:
    """A lock that is taken until somebody rings; of the kind that lets other greenlets run meanwhile."""
    bell = threading.Lock()
    bell.acquire()
    return bell


def _alive(loans: set[weakref.ref[Loan]]) -> set[weakref.ref[Loan]]:
    return {each for each in loans if each() is not None}


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
