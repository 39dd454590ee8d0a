"""
Asking one Redis server one script at a time, over connections of our own.

redis-py's connections are used without its command layer, which costs twice what
network and server do, and without its repetitions, which differ from version to
version (8.1 repeats ten times, up to a minute). Every question of a lease store bears
repeating, so a lost reply is asked for again here, on a fresh connection, within a
bound.

**Silence.** A connection that has worked and says nothing may have been forgotten by a firewall on
the way: the question is asked again, on a fresh one. A fresh one that says nothing is the server's
silence, and asking again would only keep the task's path waiting: what matters is repeated by
others, after a pause (a renewal and a release by the heartbeat, an acquire by the outage
policy). As idle connections are closed whenever one fails, a server that hangs costs two
timeouts once, and one each time after that, until it answers again.

Safe between threads and greenlets: a connection belongs to one asker at a time. Safe
after a fork: a child never touches a connection of its parent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from redis import exceptions

from celery_fence.stores.redis.connections import Connections
from celery_fence.stores.redis.failures import (
    ServerSilent,
    Unreadable,
    is_lost_connection,
    is_no_primary,
    may_pass,
    shape_of,
    unavailable,
)
from celery_fence.stores.redis.scripts import Script
from celery_fence.stores.redis.urls import Address

ATTEMPTS = 3
BACK_OFF = 0.1
"""
Seconds before the third attempt, give or take half.

The second comes at once: mostly the first failed because the server had closed the connection while it was idle.
"""

TIMEOUTS = 3
"""How many timeouts a call may take, with all its attempts, handshakes and the wait for a connection."""

MAX_CONNECTIONS = 64

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What redis-py or a reader of ours raises over an answer that isn't what a script of ours answers."""

Words = Sequence[bytes | str | int]
Answer = TypeVar("Answer")


class Client:
    """Asks scripts of the server at *address*; connects at the first question."""

    def __init__(self, address: Address, *, timeout: float, max_connections: int = MAX_CONNECTIONS) -> None:
        self._address = address
        self._timeout = timeout
        self._connections = Connections(address, timeout=timeout, limit=max_connections)

    def ask(
        self, script: Script, keys: Sequence[bytes], arguments: Words, read: Callable[[Any], Answer]
    ) -> Answer:
        """
        What *read* makes of the server's answer to *script*: one command, one round trip.

        Asks again, on a fresh connection and at most twice, when the connection
        failed or the reply was lost. No wait is longer than one timeout, all of them together take
        three at most (but for the resolver of names, which knows no timeout).

        Raises:
            StoreUnavailable: there is no answer, or none that *read* understands; whether the script ran
                isn't known.

        """
        return self.ask_counted(script, keys, arguments, lambda answer, _asked: read(answer))

    def ask_counted(
        self, script: Script, keys: Sequence[bytes], arguments: Words, read: Callable[[Any, int], Answer]
    ) -> Answer:
        """As `ask`; *read* is told how often it was asked as well: the script may have run as many times."""
        question = Question(script, keys, arguments)
        until = time.monotonic() + TIMEOUTS * self._timeout
        asked = 0
        while True:
            asked += 1
            try:
                return self._ask_once(question, until, asked, read)
            except (exceptions.RedisError, OSError) as error:
                if is_lost_connection(error) or is_no_primary(error):
                    # Its idle sisters are dead too, or lead to the old primary: a restart, a failover.
                    self._connections.drop_idle()
                over = time.monotonic() >= until  # by a slow resolver of names, which may be as slow again
                if asked == ATTEMPTS or over or not may_pass(error):
                    cause = None if self._address.shows_password(str(error)) else error
                    raise unavailable(script.name, self._address, error) from cause
            if asked > 1:
                time.sleep(BACK_OFF * random.uniform(0.5, 1.5))

    def close(self) -> None:
        """Close the idle connections; the next question opens a new one."""
        self._connections.drop_idle()

    def _ask_once(
        self, question: Question, until: float, asked: int, read: Callable[[Any, int], Answer]
    ) -> Answer:
        loan = self._connections.take(until)
        healthy = False
        try:
            raw = _evaluate(loan.connection, question)
            answer = _understood(read, raw, asked)
            healthy = True
        except exceptions.ResponseError as error:
            healthy = not is_no_primary(error)
            raise
        except (exceptions.TimeoutError, TimeoutError) as error:
            if loan.connection.used:
                raise
            raise ServerSilent(str(error)) from error
        finally:
            # Also for an exception thrown into us, such as a soft time limit: its reply is on the way.
            self._connections.give_back(loan, healthy=healthy)
        return answer


class Question(NamedTuple):
    """What is asked: *script*, about *keys*."""

    script: Script
    keys: Sequence[bytes]
    arguments: Words


def _evaluate(connection: Any, question: Question) -> Any:
    """Run the script by its digest; a server that doesn't know it gets its text, once."""
    script, keys, arguments = question
    if not connection.used:
        _heard(connection.connect)
    try:
        connection.send_command("EVALSHA", script.digest, len(keys), *keys, *arguments)
        return _heard(connection.read_response)
    except exceptions.NoScriptError:
        connection.send_command("EVAL", script.text, len(keys), *keys, *arguments)
        return _heard(connection.read_response)


def _heard(step: Callable[[], Any]) -> Any:
    try:
        return step()
    except UNREADABLE as error:
        raise Unreadable(f"not the protocol of Redis, {error}") from error


def _understood(read: Callable[[Any, int], Answer], answer: Any, asked: int) -> Answer:
    try:
        return read(answer, asked)
    except UNREADABLE as error:
        raise Unreadable(shape_of(answer)) from error
