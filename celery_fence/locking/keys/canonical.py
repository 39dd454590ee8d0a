"""
One text for one value, the same before and after any serializer.

A scalar is its text, so ``1`` equals ``"1"`` and a UUID equals its text, at any
depth. Containers are canonical JSON of such texts: a tuple equals its list, a dict
has no order and only text keys. `escaped` then makes a part of a key out of it:

============================  ==========================================
``"a:b"``, ``7``              ``a%3Ab``, ``7``
None                          ``~``
a list, dict, ...             ``~`` and its escaped JSON
longer than `LONGEST` bytes   a readable head, ``~`` and a digest of all
============================  ==========================================

In escaped text stands nothing but ASCII letters, digits, ``-``, ``_``, ``.`` and
``%``; a bare ``~`` is never part of a value, so no value can pose as another's digest.
"""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import date, time
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Plain = str | list[Any] | dict[str, Any] | None
"""What a value is made of: texts, and lists and dicts of them."""

LONGEST = 120
"""No escaped value is longer than this many bytes."""

HEAD = 80
"""How many bytes of a longer one stay readable."""

NOTHING = "~"
"""How None is written."""


class NoStableTextError(ValueError):
    """A value has no text that would be the same in another process; the message says why and what to do."""


def escaped(plain: Plain) -> str:
    """The part of a key for one plain value: two values that differ never share one."""
    if plain is None:
        return NOTHING
    mark, text = ("", plain) if isinstance(plain, str) else ("~", _as_json(plain))
    if text.isalnum() and text.isascii() and len(text) <= LONGEST:
        return mark + text
    raw = text.encode("utf-8", "surrogateescape")
    part = mark + _percent(raw[: LONGEST + 1])
    if len(raw) <= LONGEST and len(part) <= LONGEST:
        return part
    return f"{_head(part)}~{digest(mark.encode() + raw)}"


def digest(raw: bytes) -> str:
    """128 bits of SHA-256 in 32 hexadecimal digits: nobody finds two texts that share it."""
    return sha256(raw).hexdigest()[:32]


def digest_of(plain: Plain) -> str:
    """The digest of a container's canonical JSON."""
    return digest(_as_json(plain).encode("utf-8", "surrogateescape"))


def plain_form(value: object) -> Plain:
    """
    What *value* is, told in texts, lists and dicts.

    `NoStableTextError` for what has no stable text: NaN and infinity, text that
    isn't Unicode, functions, iterators, open files, an object that only has the
    default repr with its address.
    """
    try:
        return _plain(value)
    except RecursionError as error:
        raise NoStableTextError("contains itself, or is nested too deeply") from error


def _plain(value: object) -> Plain:
    for kind in type(value).__mro__:
        if kind in _FORMS:
            return _FORMS[kind](value)
    return _foreign(value)


def _unicode(text: str) -> str:
    text = str.__str__(text)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise NoStableTextError("isn't valid Unicode text (it has a lone surrogate)") from error
    return text


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise NoStableTextError(f"is {float(value)!r}, which isn't equal to itself or has no JSON form")
    return float.__repr__(value + 0.0)  # -0.0 equals 0.0


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise NoStableTextError("is a Decimal that isn't a number")
    return str(value)


def _integer(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError as error:
        raise NoStableTextError("is an integer with too many digits for Python to print") from error


def _bytes(value: bytes | bytearray) -> str:
    return value.decode("utf-8", "surrogateescape")


def _list(values: Iterable[object]) -> list[Any]:
    return [_plain(value) for value in values]


def _set(values: Iterable[object]) -> list[Any]:
    return sorted((_plain(value) for value in values), key=_as_json)


def _dict(values: dict[Any, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in values.items():
        name = _key_of_a_dict(key)
        if not isinstance(name, str):
            raise NoStableTextError(f"has a {type(key).__name__} among its keys; use text or numbers")
        if name in plain:
            raise NoStableTextError(f"has two keys that are both {name!r} as text")
        plain[name] = _plain(value)
    return plain


def _key_of_a_dict(key: object) -> Plain:
    """As JSON writes it: there None and -0.0 are keys, too."""
    if key is None:
        return "null"
    if isinstance(key, float) and math.isfinite(key):
        return float.__repr__(key)
    return _plain(key)


def _foreign(value: Any) -> Plain:
    """A value of a type of its own: as Celery and kombu dump it, or by its own text."""
    kind = type(value)
    if callable(getattr(kind, "model_dump", None)):
        return _plain(value.model_dump(mode="json"))  # as Celery's pydantic=True sends it
    if callable(getattr(kind, "__json__", None)):
        return _plain(value.__json__())  # as kombu's JSON sends it
    if dataclasses.is_dataclass(kind):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if _has_text_of_its_own(value):
        text = _unicode(str(value))
        if " at 0x" not in text:
            return text
    raise NoStableTextError(
        f"is {_a(kind.__name__)}, which has no text that is the same in every process; "
        "pass an id instead, or let a callable make the key"
    )


def _has_text_of_its_own(value: object) -> bool:
    """
    Whether `str` tells this value from another, and tells the same elsewhere.

    Not for what runs, iterates or is iterated over (an array prints with dots in
    its middle), and not for a database model, whose text is a title, not its identity.
    """
    kind = type(value)
    if kind.__str__ is object.__str__ or isinstance(value, BaseException) or callable(value):
        return False
    return not any(hasattr(kind, name) for name in ("__iter__", "__len__", "__next__", "_meta"))


_FORMS: dict[type, Callable[[Any], Plain]] = {
    str: _unicode,
    bool: lambda value: "true" if value else "false",
    int: _integer,
    type(None): lambda _: None,
    float: _float,
    list: _list,
    tuple: _list,
    dict: _dict,
    set: _set,
    frozenset: _set,
    UUID: str,
    date: lambda value: value.isoformat(),
    time: lambda value: value.isoformat(),
    Decimal: _decimal,
    Enum: lambda value: _plain(value.value),
    bytes: _bytes,
    bytearray: _bytes,
}
"""The form of each type that a serializer keeps, or turns into another of these."""


def _as_json(plain: Plain) -> str:
    return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _percent(raw: bytes) -> str:
    return quote(raw, safe="").replace("~", "%7E")


def _head(part: str) -> str:
    """The first bytes of an escaped text, not cut inside an escape."""
    head = part[:HEAD]
    cut = head.rfind("%", HEAD - 2)
    return head[:cut] if cut >= 0 else head


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"
