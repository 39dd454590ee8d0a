"""A write under the lease on another key: tokens of two keys can't be compared."""

from __future__ import annotations

from urllib.parse import unquote

from celery_fence.errors import ScopeMismatch


def mismatch(held: str, *, scope: str, key: str) -> ScopeMismatch:
    """The error for a write, under the lease on the key *held*, to *scope*, which is written under another *key*."""
    what = repr(scope) if scope == key else f"{scope!r}, which belongs to {key!r},"
    do = f"Take the lease on {key!r} for this write, or correct the scope."
    if scope == key and is_unescaped(scope, held):
        do = (
            "This is the key before escaping, which percent-escapes what stands for a placeholder: leave the scope "
            "out where the guard has one of its own, or write lease.key."
        )
    return ScopeMismatch(
        f"A write to {what} with the lease on {held!r}: tokens of two keys can't be compared, so nothing "
        f"was written. {do}",
        scope=scope,
        key=held,
    )


def is_unescaped(scope: str, key: str) -> bool:
    """Whether *scope* is what *key* would be if the values in it weren't escaped."""
    return scope != key and unquote(key) == scope
