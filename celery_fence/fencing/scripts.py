"""
Lua scripts of the guards that live in Redis, and how they are asked.

The client is the user's own, a `redis.Redis` or a `redis.RedisCluster`: the stream
and the marks lie where its other data lie, and its time-outs, repeats and errors
are the ones that the user chose and catches already.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from celery_fence.errors import ConfigError

Word = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """A question: its text, and the digest under which the server knows it."""

    text: bytes
    digest: str

    def ask(self, client: Any, keys: Sequence[bytes], arguments: Sequence[Word]) -> Any:
        """
        The server's answer: one round trip, two where the server doesn't know the script yet.

        Whatever the client raises: it isn't known whether the script ran.
        """
        try:
            return client.evalsha(self.digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return client.eval(self.text, len(keys), *keys, *arguments)


@cache
def load_script(*names: str) -> Script:
    """The script made of files of `celery_fence.fencing`, such as ``"high_water/mark"``; read once per process."""
    text = b"\n".join((files("celery_fence.fencing") / f"{name}.lua").read_bytes() for name in names)
    # SHA-1 is how Redis names scripts; it protects nothing.
    return Script(text, sha1(text, usedforsecurity=False).hexdigest())


def sync_client(client: Any) -> Any:
    """*client* itself; `ConfigError` for none, and for one whose answers have to be awaited, which fences nothing."""
    if not callable(getattr(client, "evalsha", None)):
        raise ConfigError(
            f"This needs a client such as redis.Redis.from_url('redis://...'), not {type(client).__name__}."
        )
    if inspect.iscoroutinefunction(getattr(client, "execute_command", None)):
        raise ConfigError(
            f"This needs a client such as redis.Redis, not {type(client).__name__} of redis.asyncio."
        )
    return client


def to_bytes(text: str) -> bytes:
    """*text* as UTF-8; lone surrogates survive, so that no key is refused for its spelling."""
    return text.encode("utf-8", "surrogatepass")


def to_text(raw: bytes | str) -> str:
    """The text that `to_bytes` was given, whether or not the client decodes its replies."""
    return raw.decode("utf-8", "surrogatepass") if isinstance(raw, bytes) else raw


def milliseconds(name: str, seconds: float | None) -> int:
    """*seconds* as Redis takes them, at least 1; 0, for "never", where they are None."""
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not 0 < seconds < float("inf"):
        raise ConfigError(f"{name} must be a number of seconds above 0, or None for ever, not {seconds!r}")
    return max(1, round(seconds * 1000))
