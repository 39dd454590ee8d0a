"""What the store is asked while something is wrong."""

from __future__ import annotations

from celery_fence.locking.store import Claim, Note

CLAIM = Claim("tenant:7:sync", "owner", 30.0)
DELIVERED = Claim(CLAIM.key, "owner", 30.0, delivery="d1", message="m1")
COPY = Claim(CLAIM.key, "copy", 30.0, delivery="d1", message="m1")
ASKER = Claim(CLAIM.key, "asker", 30.0, delivery="d2", message="m2", if_held="skipped")
ASKERS_COPY = Claim(CLAIM.key, "asker's copy", 30.0, delivery="d2", message="m2", if_held="skipped")
VALUE = b"\x00\xff\r\n" * 2000
NOTE = Note(CLAIM.key, "d1", "returned", 3600.0)
