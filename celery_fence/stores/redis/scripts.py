"""The Lua scripts, one per question."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A question: its name, its text, and the digest under which the server knows it."""

    name: str
    text: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class Scripts:
    """All questions."""

    acquire: Script
    renew: Script
    release: Script
    force_release: Script
    holders: Script
    list: Script
    history: Script
    note: Script
    check: Script
    raise_counter: Script
    claim_record: Script
    end_record: Script
    records: Script
    delete_record: Script


RECORDING = ("acquire", "release", "claim_record", "end_record", "records", "delete_record")
"""The questions that touch idempotency records."""


@cache
def load_scripts() -> Scripts:
    """Read the scripts from the package, once per process."""
    return Scripts(**{name: _load(name) for name in Scripts.__slots__})


def _load(name: str) -> Script:
    folder = files("celery_fence.stores.redis")
    parts = ("prelude", "recording", name) if name in RECORDING else ("prelude", name)
    text = b"\n".join((folder / f"{part}.lua").read_bytes() for part in parts)
    # SHA-1 is how Redis names scripts; it protects nothing.
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest())
