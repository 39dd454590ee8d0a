"""How the marks of a stream and its events are spelled in Redis: beside the stream, in one Cluster slot."""

from __future__ import annotations

from urllib.parse import quote

from celery_fence.errors import ConfigError
from celery_fence.fencing.scripts import to_bytes


class Names:
    """
    The keys that belong to *stream*: its own hash tag, or else its whole name, is theirs as well.

    What stands between colons is percent-escaped, so that no two aggregates and no
    two streams share a key.
    """

    __slots__ = ("_event", "_mark", "stream")

    def __init__(self, prefix: str, stream: str) -> None:
        if not prefix or set(prefix) & set("{}"):
            # Braces would take the place of the stream's own hash tag.
            raise ConfigError(f"the prefix of a FencedStream must be a text without braces, not {prefix!r}")
        self.stream = to_bytes(stream)
        home = f"{prefix}:{{{_tag(stream)}}}"
        self._mark = f"{home}:mark:{_escaped(stream)}:"
        self._event = f"{home}:event:{_escaped(stream)}:"

    def mark(self, aggregate: str) -> bytes:
        """The high-water mark of *aggregate*."""
        return to_bytes(self._mark + _escaped(aggregate))

    def event(self, aggregate: str, event_id: str) -> bytes:
        """What is remembered of an event of *aggregate*."""
        return to_bytes(f"{self._event}{_escaped(aggregate)}:{_escaped(event_id)}")


def _tag(stream: str) -> str:
    """What a Cluster hashes of the name *stream*: between its first brace and the next closing one, else all of it."""
    _, opening, rest = stream.partition("{")
    tag, closing, _ = rest.partition("}")
    if opening and closing and tag:
        return tag
    if not stream or "}" in stream:
        raise ConfigError(
            f"A stream named {stream!r} can't share a Cluster slot with its marks; give it a name without braces, or "
            "one with a hash tag, such as {payouts}:events."
        )
    return stream


def _escaped(text: str) -> str:
    return quote(text, safe="!$&'()*+,;=@/ ", errors="surrogatepass")
