"""How a business key is spelled in Redis, in bytes; the table is in the package's docstring."""

from __future__ import annotations

from hashlib import blake2b
from zlib import crc32

BUCKETS = 64


def to_bytes(text: str) -> bytes:
    """*text* as UTF-8; lone surrogates survive, so that no key is refused for its spelling."""
    return text.encode("utf-8", "surrogatepass")


def to_text(raw: bytes) -> str:
    """The text that `to_bytes` was given; bytes that somebody else wrote read as well as they can."""
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


class Names:
    """The names of one prefix."""

    __slots__ = ("_buckets",)

    def __init__(self, prefix: str) -> None:
        self._buckets = [to_bytes(f"{prefix}:{{b{number:02d}}}:") for number in range(BUCKETS)]

    def of(self, key: bytes) -> tuple[bytes, bytes, bytes]:
        """The lease, the counter and the expiry index of *key*, in the order in which scripts take them."""
        bucket = self._buckets[bucket_of(key)]
        return bucket + b"lease:" + key, bucket + b"token:" + key, bucket + b"expiries"

    def lease(self, key: bytes) -> bytes:
        """The lease of *key*."""
        return self._buckets[bucket_of(key)] + b"lease:" + key

    def done(self, key: bytes, delivery: bytes) -> bytes:
        """The marker of *delivery*: by its digest, which is of one length, so that the key is all of the rest."""
        digest = blake2b(delivery, digest_size=16).hexdigest().encode()
        return self._buckets[bucket_of(key)] + b"done:" + digest + b":" + key

    def record(self, key: bytes) -> tuple[bytes, bytes]:
        """The record of the idempotency *key*, and the index of its bucket's records."""
        bucket = self._buckets[bucket_of(key)]
        return bucket + b"record:" + key, bucket + b"records"

    def record_indexes(self) -> list[bytes]:
        """The index of the records of each bucket."""
        return [bucket + b"records" for bucket in self._buckets]

    def check(self) -> tuple[bytes, bytes]:
        """Two names in two buckets for trying out what may be done here; nothing of a key has them."""
        return self._buckets[0] + b"check:hash", self._buckets[1] + b"check:set"

    def indexes(self) -> list[bytes]:
        """The expiry index of each bucket."""
        return [bucket + b"expiries" for bucket in self._buckets]


def bucket_of(key: bytes) -> int:
    """The bucket of *key*, the same in every process and for ever: part of the layout."""
    return crc32(key) % BUCKETS
