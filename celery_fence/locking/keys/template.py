"""A key template, taken apart once and filled many times."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from celery_fence.errors import ConfigError, LockKeyError
from celery_fence.locking.keys.canonical import NoStableTextError, digest, digest_of, escaped, plain_form

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST_KEY = 512
"""No key is longer than this many bytes; a longer one ends with ``~~`` and a digest of all of it."""

LONGEST_TEMPLATE = 255
"""A template's text, in bytes: the key's readable part is for people."""

TASK = "task"
ARGUMENTS = "arguments"
RESERVED = (TASK, ARGUMENTS)

SLOT = "slot"
"""The scheduled time of a periodic run, in the key of a record; a parameter of that name goes before it."""

NO_SLOT = (
    "isn't known: no beat has stamped this message with the time it was scheduled for. Start beat with "
    "beat_scheduler='celery_fence.task.beat:SlotScheduler' and a crontab or interval schedule; write <slot?> if runs "
    "without a slot, such as those sent by hand, share one record"
)

_PIECE = re.compile(r"<([^<>]*)>")
_FIELD = re.compile(r"(?P<name>[^\W\d]\w*)(?P<items>(?:\[[^\[\]]+\])*)(?P<optional>\??)")
_ITEM = re.compile(r"\[([^\[\]]+)\]")
_KEPT = "".join(sorted(set(string.punctuation) - set("%~{}<>")))
_FORMATS = re.compile(
    r"\$\{?(?P<shell>[^\W\d]\w*)\}?|%\((?P<percent>\w+)\)[a-z]?|%[sdr]\b|\{(?P<brace>[^{}]*)\}?"
)
"""How other templates write a placeholder: ``$name``, ``%(name)s``, ``%s``, ``{name}``, ``{}``."""
_NEVER_IN_A_VALUE = set(_KEPT) - set("-._")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """``<order[id]?>``: a *name*, *items* to go down into, and whether None and empty text are welcome."""

    name: str
    items: tuple[str, ...] = ()
    optional: bool = False

    @property
    def written(self) -> str:
        """As it stands in the template, without the angle brackets and the question mark."""
        return self.name + "".join(f"[{item}]" for item in self.items)


@dataclass(frozen=True, slots=True)
class Template:
    """
    Literal text and placeholders, in turn.

    *guards* are the separators that values may contain, too (``-``, ``.``, ``_``
    where nothing else stands between two placeholders): escaped in each value.
    """

    text: str
    parts: tuple[str | Placeholder, ...]
    guards: str = ""

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """The placeholders in their order, with repetitions."""
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    def fill(self, values: Mapping[str, Any], look_up: Callable[[str], Any], task: str) -> str:
        """
        The key: two sets of values that differ never share one.

        *look_up* gives the value of a name; *values* are all of them, for
        ``<arguments>``. `LockKeyError` names task, template and field.
        """
        key = ""
        for part in self.parts:
            key += part if isinstance(part, str) else self._part(part, values, look_up, task)
        return bounded(key)

    def _part(
        self,
        field: Placeholder,
        values: Mapping[str, Any],
        look_up: Callable[[str], Any],
        task: str,
    ) -> str:
        try:
            part = _value_part(field, values, look_up, task)
        except NoStableTextError as error:
            raise self.refusal(field, str(error), task) from error
        for guard in self.guards:
            part = part.replace(guard, f"%{ord(guard):02X}")
        return part

    def refusal(self, field: Placeholder, why: str, task: str) -> LockKeyError:
        """The error for a *field* whose value can't be part of a key."""
        of_task = f" of task {task!r}" if task else ""
        return LockKeyError(
            f"No key{of_task} from {self.text!r}: <{field.written}> {why}.",
            template=self.text,
            field=field.written,
            task=task or None,
        )


def bounded(key: str) -> str:
    """*key*, or its head and the digest of all of it when it is too long; never cut only."""
    raw = key.encode()
    if len(raw) <= LONGEST_KEY:
        return key
    head = raw[: LONGEST_KEY - 34].decode(errors="ignore")
    return f"{head}~~{digest(raw)}"


def parse(text: str, *, task: str = "") -> Template:
    """Take a template apart; `ConfigError` says what is wrong with which piece of it, and what to write."""
    _check_text(text, task)
    pieces = _PIECE.split(text)
    parts: list[str | Placeholder] = []
    for place, piece in enumerate(pieces):
        if place % 2:
            parts.append(_placeholder(piece, text, task))
        elif piece:
            _check_literal(piece, text, task)
            parts.append(quote(piece, safe=_KEPT).replace("~", "%7E"))  # `quote` always keeps it
    return Template(text, tuple(parts), _guards(parts, text, task))


def wrong_template(text: str, why: str, task: str) -> ConfigError:
    """The error for a template that can't be right."""
    of_task = f" of task {task!r}" if task else ""
    return ConfigError(f"lock_key {text!r}{of_task}: {why}")


def _check_text(text: str, task: str) -> None:
    if not text.strip():
        raise wrong_template(text, "is empty; write a text such as 'tenant:<tenant_id>:sync'.", task)
    if len(text.encode(errors="replace")) > LONGEST_TEMPLATE:
        raise wrong_template(text, f"is longer than {LONGEST_TEMPLATE} bytes; shorten it.", task)
    if not text.isprintable():
        raise wrong_template(text, "has a character that doesn't print; a key is one line of text.", task)


def _check_literal(literal: str, text: str, task: str) -> None:
    found = _FORMATS.search(literal)
    if found:
        said = found["shell"] or found["percent"] or found["brace"] or ""
        name = re.match(r"[^\W\d]\w*", said.strip())
        meant = f"<{name[0]}>" if name else "<name>"
        raise wrong_template(text, f"{found[0]} is not a placeholder here; write {meant}.", task)
    for bracket in "<>":
        if bracket in literal:
            raise wrong_template(text, f"a {bracket!r} without its partner; write <name>.", task)


def _placeholder(piece: str, text: str, task: str) -> Placeholder:
    found = _FIELD.fullmatch(piece)
    if found is None:
        raise wrong_template(text, _what_is_wrong_with(piece), task)
    items = tuple(_ITEM.findall(found["items"]))
    bare = [item.strip(" '\"") for item in items]
    if any(map(str.__ne__, items, bare)):
        right = f"<{found['name']}{''.join(f'[{item}]' for item in bare)}{found['optional']}>"
        raise wrong_template(text, f"<{piece}> has quotes or spaces around an item; write {right}.", task)
    if any(name.startswith("__") for name in (found["name"], *items)):
        raise wrong_template(text, f"<{piece}> begins with two underscores, which no placeholder may.", task)
    return Placeholder(found["name"], items, bool(found["optional"]))


def _what_is_wrong_with(piece: str) -> str:
    if not piece.strip():
        return "<> has no name in it; write <name>, the name of a parameter of the task."
    if _FIELD.fullmatch(piece.strip()):
        return f"<{piece}> has spaces around the name; write <{piece.strip()}>."
    if "." in piece:
        return (
            f"<{piece}> reads an attribute, which an argument doesn't have once it went through the "
            "serializer; write <name[item]> for an item of a dict, or let a callable make the key."
        )
    return (
        f"<{piece}> is not a placeholder; write <name>, <name[item]> for an item of a dict or list, "
        "<name?> where None and empty text are welcome, or let a callable make the key."
    )


def _guards(parts: list[str | Placeholder], text: str, task: str) -> str:
    """The separators that values must not contain: nothing, unless only ``-``, ``.`` or ``_`` separate."""
    guards = ""
    last: Placeholder | None = None
    between = ""
    for part in parts:
        if isinstance(part, str):
            between += part
            continue
        if last is not None and not _NEVER_IN_A_VALUE.intersection(between):
            guards += _guard(between, last, part, wrong=lambda why: wrong_template(text, why, task))
        last, between = part, ""
    return "".join(sorted(set(guards)))


def _guard(
    between: str, left: Placeholder, right: Placeholder, *, wrong: Callable[[str], ConfigError]
) -> str:
    for guard in "-._":
        if guard in between:
            return guard
    raise wrong(
        f"<{left.written}> and <{right.written}> need a separator such as ':' between them, else 'a' and "
        "'bc' would share a key with 'ab' and 'c'."
    )


def _value_part(
    field: Placeholder,
    values: Mapping[str, Any],
    look_up: Callable[[str], Any],
    task: str,
) -> str:
    """The escaped text of one placeholder's value; `NoStableTextError` says why there is none."""
    if field.name == ARGUMENTS and ARGUMENTS not in values:
        return digest_of(plain_form(dict(values)))
    value = task if field.name == TASK and TASK not in values else look_up(field.name)
    if field.name == SLOT and value is None and not field.optional and SLOT not in values:
        raise NoStableTextError(NO_SLOT)
    for item in field.items:
        value = _item(value, item)
    plain = plain_form(value)
    if (plain is None or plain == "") and not field.optional:
        what = "None" if plain is None else "empty"
        raise NoStableTextError(f"is {what}; write <{field.written}?> if that is a key of its own")
    return escaped(plain)


def _item(value: Any, item: str) -> Any:
    """One step down, by the name as text or as a number."""
    if not isinstance(value, dict | list | tuple):
        value = plain_form(value)
    number = int(item) if re.fullmatch(r"-?\d+", item) else None
    try:
        if isinstance(value, list | tuple) and number is not None:
            return value[number]
        if isinstance(value, dict):
            return value[item] if item in value or number is None else value[number]
    except LookupError as error:
        raise NoStableTextError(f"isn't there: there is no item {item!r}") from error
    raise NoStableTextError(f"isn't there: {type(value).__name__} has no item {item!r}")
