"""
Asking one Redis server one script at a time, over connections of our own.

redis-py's connections are used without its command layer, which costs twice what
network and server do, and without its repetitions, which differ from version to
version (8.1 repeats ten times, up to a minute). Every question of a lease store bears
repeating, so a lost reply is asked for again here, on a fresh connection, within a
bound.

Safe between threads and greenlets: a connection belongs to one asker at a time. Safe
after a fork: a child never touches a connection of its parent.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_fence.errors import ConfigError
from celery_fence.locking.native import new_lock
from celery_fence.stores.redis.failures import is_no_primary, may_pass, unavailable
from celery_fence.stores.redis.scripts import Script
from celery_fence.stores.redis.urls import Address

ATTEMPTS = 3
BACK_OFF = 0.05
"""Seconds before the second attempt, give or take half; twice that before the third."""

PATIENCE = 1.1
"""Ask again within this many timeouts: after one that was for the reply, not after two (connect, reply)."""

MAX_CONNECTIONS = 64

LOOK = 0.1
"""Seconds after which who waits for a connection looks whether one was lost, of which nobody told."""

Words = Sequence[bytes | str | int]


class Client:
    """Asks scripts of the server at *address*; connects at the first question."""

    def __init__(self, address: Address, *, timeout: float, max_connections: int = MAX_CONNECTIONS) -> None:
        self._address = address
        self._timeout = timeout
        self._connections = Connections(address, timeout=timeout, limit=max_connections)

    def ask(self, script: Script, keys: Sequence[bytes], arguments: Words) -> Any:
        """
        The server's answer to *script*: one command, one round trip.

        Asks again, on a fresh connection and at most twice, when the connection
        failed or the reply was lost. One attempt takes at most two timeouts, one to
        connect and one for the reply; all of them about three.

        Raises:
            StoreUnavailable: there is no answer; whether the script ran isn't known.

        """
        return self.ask_counted(script, keys, arguments)[0]

    def ask_counted(self, script: Script, keys: Sequence[bytes], arguments: Words) -> tuple[Any, int]:
        """As `ask`; also how often it was asked: the script may have run as many times."""
        started = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._ask_once(script, keys, arguments), attempt
            except (exceptions.RedisError, OSError) as error:
                late = time.monotonic() - started >= PATIENCE * self._timeout
                if attempt == ATTEMPTS or late or not may_pass(error):
                    raise unavailable(script.name, self._address.description, error) from error
            # One dead connection means that its idle sisters are dead too: a restart, a failover.
            self._connections.drop_idle()
            time.sleep(BACK_OFF * attempt * random.uniform(0.5, 1.5))

    def close(self) -> None:
        """Close the idle connections; the next question opens a new one."""
        self._connections.drop_idle()

    def _ask_once(self, script: Script, keys: Sequence[bytes], arguments: Words) -> Any:
        loan = self._connections.take()
        healthy = False
        try:
            answer = _evaluate(loan.connection, script, keys, arguments)
            healthy = True
        except exceptions.ResponseError as error:
            healthy = not is_no_primary(error)
            raise
        finally:
            # Also for an exception thrown into us, such as a soft time limit: its reply is on the way.
            self._connections.give_back(loan, healthy=healthy)
        return answer


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
        self._class = address.connection_class
        self._options = _connection_options(address, timeout)
        self._timeout = timeout
        self._limit = limit
        self._description = address.description
        self._start_empty()
        # Wrong options are found now, not in the first task.
        self._make()

    def take(self) -> Loan:
        """An idle connection or a new one; not necessarily connected yet."""
        if self._pid != os.getpid():
            # What is idle here is the parent's. Redis-py closes such a socket without ending the session.
            self._start_empty()
        loan, bell, end = Loan(), _silent_bell(), time.monotonic() + self._timeout
        while not self._lend(loan, bell):
            self._wait(bell, end - time.monotonic())
        try:
            loan.connection = self._idle.pop()
        except IndexError:
            loan.connection = self._make()
        return loan

    def give_back(self, loan: Loan, *, healthy: bool) -> None:
        """Take the connection back: kept when *healthy*, else closed."""
        try:
            if healthy and loan.connection.pid == self._pid:
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
            raise exceptions.TimeoutError(f"all {self._limit} connections of this process are busy")
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
            return self._class(**self._options)
        except (TypeError, ValueError, exceptions.RedisError) as error:
            raise ConfigError(
                f"fence_url: an option of {self._description} can't be used: {error}"
            ) from error


def _silent_bell() -> Any:
    """A lock that is taken until somebody rings; of the kind that lets other greenlets run meanwhile."""
    bell = threading.Lock()
    bell.acquire()
    return bell


def _alive(loans: set[weakref.ref[Loan]]) -> set[weakref.ref[Loan]]:
    return {each for each in loans if each() is not None}


def _connection_options(address: Address, timeout: float) -> dict[str, Any]:
    options = {
        "client_name": "celery-fence",
        "socket_timeout": timeout,
        "protocol": 2,
        **address.options,
        # The default of a connection up to 8.1; asking again is our own business, whatever comes.
        "retry": Retry(NoBackoff(), 0),
    }
    if "path" not in options:
        options = {"socket_connect_timeout": timeout, "socket_keepalive": True, **options}
    return options


def _evaluate(connection: Any, script: Script, keys: Sequence[bytes], arguments: Words) -> Any:
    """Run *script* by its digest; a server that doesn't know it gets its text, once."""
    try:
        connection.send_command("EVALSHA", script.digest, len(keys), *keys, *arguments)
        return connection.read_response()
    except exceptions.NoScriptError:
        connection.send_command("EVAL", script.text, len(keys), *keys, *arguments)
        return connection.read_response()


def _disconnect(connection: Any) -> None:
    # It is thrown away: that it can't even be closed is no news.
    with suppress(exceptions.RedisError, OSError):
        connection.disconnect()
