"""A Redis stream whose stale writers are refused."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_fence.errors import ConfigError, FenceError
from celery_fence.fencing.attempt import Attempt
from celery_fence.fencing.high_water import RETENTION, Mark
from celery_fence.fencing.mismatch import mismatch
from celery_fence.fencing.scripts import load_script, milliseconds, sync_client, to_bytes, to_text
from celery_fence.fencing.stamp import OWNER, SCOPE, TOKEN
from celery_fence.fencing.streams.names import Names
from celery_fence.fencing.writer import Mode, Shown, Writer, let_pass, refuse, writer_for

EVENT = "fencing_event"
"""The field of an entry that holds its event id."""

OWN_PREFIX = "fencing_"
MOST_FIELDS = 1000

EVENT_RETENTION = 86400.0
"""Seconds for which an event that has an id is remembered, unless told otherwise."""

REPEAT_WINDOW = 600.0
"""Seconds for which an event without one is: long enough for whatever the client repeats by itself."""

Value = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Appended:
    """An event is in the stream as *entry*; *repeated* where an earlier call had put it there."""

    entry: str
    repeated: bool = False


class FencedStream:
    """
    The stream *name* in the Redis of *client*, a `redis.Redis` or `redis.RedisCluster`.

    A high-water mark for each aggregate is kept for *retention* seconds after its
    last event (None: for good), and an event id for *event_retention* seconds. *maxlen*
    keeps about that many entries, as in XADD. The server must not evict.

    Raises:
        ConfigError: such a stream can't be.

    """

    def __init__(
        self,
        client: Any,
        name: str,
        *,
        prefix: str = "fence",
        retention: float | None = RETENTION,
        event_retention: float = EVENT_RETENTION,
        maxlen: int | None = None,
    ) -> None:
        self.name = name
        self._client = sync_client(client)
        self._names = Names(prefix, name)
        self._retention_ms = milliseconds("retention", retention)
        self._event_retention_ms = milliseconds("event_retention", event_retention)
        self._window_ms = milliseconds("window", REPEAT_WINDOW)
        self._maxlen = "" if maxlen is None else maxlen
        self._append = load_script("high_water/mark", "streams/append")

    def append(
        self,
        aggregate: str,
        event: Mapping[str, Value],
        lease: Shown | None = None,
        *,
        key: str | None = None,
        event_id: str | None = None,
        mode: Mode | None = None,
    ) -> Appended:
        """
        Put *event* into the stream, unless a newer token has written to *aggregate*: one round trip.

        Under the lease given, else the one that the running code is under. It must be
        on the key *aggregate*, escaped as that is (`current_lease().key`); name the *key*
        where one covers many aggregates (the same for each writer of an aggregate). The entry carries `fencing_token`,
        `fencing_scope` (the aggregate), `fencing_owner` and `fencing_event` beside the
        event's own fields.

        Each call is one event, however often the client sends it. With an
        *event_id* so is each call with that id and aggregate, from whichever run:
        after a connection error, or in the next run, the event isn't appended twice.

        Raises:
            StaleToken: a newer run has written to the aggregate; nothing was appended.
            ScopeMismatch: the lease is on another key, or the aggregate has been
                written to under another one.
            UnfencedWrite: there is no lease, or its token is None.
            ConfigError: the aggregate, the event or the lease is something else.
            redis.RedisError: as the client raises it; whether the event was
                appended isn't known.

        """
        _check_texts(aggregate=aggregate, key=key, event_id=event_id)
        fields = _fields(event)
        attempt = Attempt(f"append() to {self.name}", "append(..., lease=lease)")
        writer = writer_for(aggregate if key is None else key, lease, mode=mode, attempt=attempt)
        answer = self._ask_to_append(writer, aggregate, fields, event_id)
        return self._appended(writer, aggregate, answer)

    def _ask_to_append(self, writer: Writer, aggregate: str, fields: list[Any], event_id: str | None) -> Any:
        remembered_ms = self._window_ms if event_id is None else self._event_retention_ms
        event_id = uuid.uuid4().hex if event_id is None else event_id
        token = "" if writer.token is None else str(writer.token)
        who = (writer.mode, token, to_bytes(writer.owner or ""), to_bytes(writer.key))
        words = (*fields, *_stamp(writer, aggregate, event_id))
        return self._append.ask(
            self._client,
            (self._names.stream, self._names.mark(aggregate), self._names.event(aggregate, event_id)),
            (*who, self._retention_ms, remembered_ms, self._maxlen, *words),
        )

    def mark(self, aggregate: str) -> Mark | None:
        """The highest token that has written to *aggregate*, or None where none is remembered."""
        token, owner = self._client.hmget(self._names.mark(aggregate), "token", "owner")
        return None if token is None else Mark(int(token), to_text(owner) or None)

    def forget(self, aggregate: str) -> None:
        """
        Drop the mark of *aggregate*: the next writer sets it, whatever its token and key.

        For a change of the key under which an aggregate is written. Until that next
        writer comes, an older one passes.
        """
        self._client.delete(self._names.mark(aggregate))

    def _appended(self, writer: Writer, aggregate: str, answer: Any) -> Appended:
        word, entry, what = to_text(answer[0]), answer[1], f"XADD {self.name}"
        if word == "other_key":
            raise mismatch(writer.key, scope=aggregate, key=to_text(entry))
        if word == "stale":
            refuse(
                writer, scope=aggregate, seen=int(answer[2]), seen_owner=to_text(answer[3]) or None, what=what
            )
        if writer.token is None:
            let_pass(writer, scope=aggregate, what=what)
        return Appended(to_text(entry), repeated=word == "repeated")


def _check_texts(**given: str | None) -> None:
    for name, text in given.items():
        if (text is None and name == "aggregate") or not (text is None or (isinstance(text, str) and text)):
            raise ConfigError(f"The {name} of append() is a text such as 'payout:7', not {text!r}.")


def _fields(event: Mapping[str, Value]) -> list[Any]:
    """The names and values of *event*, in turn."""
    if not isinstance(event, Mapping):
        raise ConfigError(f"An event is a mapping such as {{'type': 'paid'}}, not {event!r}.")
    if len(event) > MOST_FIELDS:
        raise FenceError(
            f"An event has at most {MOST_FIELDS} fields, not {len(event)}; put them into one, as JSON."
        )
    for name, value in event.items():
        if str(name).startswith(OWN_PREFIX):
            raise FenceError(f"The field {name!r} of an event is the stream's own; call it something else.")
        if not isinstance(value, Value) or isinstance(value, bool):
            raise FenceError(
                f"The field {name!r} of an event is a text, bytes or a number, not {value!r}; write it as JSON."
            )
    return [word for pair in event.items() for word in pair]


def _stamp(writer: Writer, aggregate: str, event_id: str) -> list[Any]:
    """Whose the entry is, as further fields; what isn't known is left out."""
    known = {TOKEN: writer.token, SCOPE: aggregate, OWNER: writer.owner, EVENT: event_id}
    return [
        to_bytes(str(word)) for name, value in known.items() if value is not None for word in (name, value)
    ]
