"""From a call's arguments to its key."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from celery_fence.errors import ConfigError, LockKeyError
from celery_fence.locking.keys.canonical import NoStableTextError, escaped, plain_form
from celery_fence.locking.keys.names import check_names
from celery_fence.locking.keys.signature import fits, own_signature
from celery_fence.locking.keys.template import RESERVED, SLOT, TASK, Template, bounded, parse
from celery_fence.locking.suggest import hint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class KeyRule:
    """
    How the key of one task's calls is made.

    *text* is the template, or ``module.qualname`` of the callable: the same for
    all calls, so it may stand in a metric's label. *slots* says whether a slot may be part of it.
    """

    text: str
    task: str
    signature: inspect.Signature
    made_by: Template | Callable[..., Any]
    slots: bool = False

    def render(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, slot: str | None = None) -> str:
        """
        The key of a call with *args* and *kwargs*, without the injected one; *slot* is when it was scheduled.

        Position, name and default of an argument give one key. `LockKeyError`
        names the task, the template and the field that can't be part of a key;
        `TypeError`, as of any call, says which arguments the task doesn't take.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.task}(): {error}") from error
        bound.apply_defaults()
        if isinstance(self.made_by, Template):
            look_up = partial(_look_up, self, bound.arguments, slot)
            return self.made_by.fill(bound.arguments, look_up, self.task)
        return self._called(self.made_by, bound)

    def _called(self, make: Callable[..., Any], bound: inspect.BoundArguments) -> str:
        try:
            answer = make(*bound.args, **bound.kwargs)
        except Exception as error:  # the user's code: whatever it raises, there is no key
            raise self._refusal(f"the callable raised {type(error).__name__}: {error}") from error
        if isinstance(answer, str):
            return self._checked(str.__str__(answer))
        if isinstance(answer, tuple) and answer:
            return bounded(":".join(self._part(place, part) for place, part in enumerate(answer, start=1)))
        if isinstance(answer, list | set | frozenset):
            raise self._refusal("the callable returned several keys, which can't be taken yet; return one")
        raise self._refusal(f"the callable must return text or a tuple of parts, not {_what(answer)}")

    def _checked(self, key: str) -> str:
        if not key.strip() or not key.isprintable():
            raise self._refusal(f"the callable returned {key!r}; a key is one line of printable text")
        return bounded(key)

    def _part(self, place: int, part: object) -> str:
        field = f"part {place}"
        try:
            plain = plain_form(part)
        except NoStableTextError as error:
            raise self._refusal(f"{field} of the callable's tuple {error}", field) from error
        if plain is None or plain == "":
            raise self._refusal(f"{field} of the callable's tuple is {part!r}; leave it out", field)
        return escaped(plain)

    def _refusal(self, why: str, field: str | None = None) -> LockKeyError:
        return LockKeyError(
            f"No key of task {self.task!r} from {self.text!r}: {why}.",
            template=self.text,
            field=field,
            task=self.task,
        )


def key_rule(
    spec: str | Callable[..., Any], *, signature: inspect.Signature, task: str, slots: bool = False
) -> KeyRule:
    """
    The rule that a task's ``lock_key`` states, checked against the task's *signature*.

    With *slots*, as in an ``idempotency_key``, a template may have a ``<slot>``.

    `ConfigError` names the task and the template: a placeholder that no parameter
    has, a template that doesn't parse, a callable that can't take the task's arguments.
    """
    given: object = spec
    if isinstance(given, str):
        template = parse(given, task=task)
        check_names(template, signature, task, slots=slots)
        return KeyRule(given, task, signature, template, slots)
    if callable(given):
        make = _taking(given, signature, task)
        return KeyRule(_qualified(make), task, signature, make)
    raise ConfigError(
        f"lock_key of task {task!r} must be a template such as 'tenant:<tenant_id>:sync' or a callable, "
        f"not {given!r}."
    )


def render_template(template: str, values: Mapping[str, Any], *, task: str = "") -> str:
    """
    The key that *template* and *values* give, as a task with these arguments would have it.

    `ConfigError` for a template that can't be right, `LockKeyError` for a value
    that is missing or can't be part of a key.
    """
    parsed = _parsed(template)
    missing = [
        field
        for field in parsed.placeholders
        if field.name not in values and (field.name not in RESERVED or (field.name == TASK and not task))
    ]
    if missing:
        raise parsed.refusal(missing[0], f"isn't given.{_known(missing[0].name, values)}".rstrip("."), task)
    return parsed.fill(values, values.__getitem__, task)


def names_in_template(template: str) -> tuple[str, ...]:
    """The names of the placeholders of *template*, each once. `ConfigError` for a template that can't be right."""
    return tuple(dict.fromkeys(field.name for field in _parsed(template).placeholders))


_parsed = lru_cache(maxsize=256)(parse)


def _look_up(rule: KeyRule, arguments: Mapping[str, Any], slot: str | None, name: str) -> Any:
    """A parameter's value, or that of a name which only ``**kwargs`` took in; else the slot, if that is the name."""
    if name in arguments:
        return arguments[name]
    extra: Mapping[str, Any] = {}
    for each in rule.signature.parameters.values():
        if each.kind is each.VAR_KEYWORD:
            extra = arguments[each.name]
    if name in extra:
        return extra[name]
    if name == SLOT and rule.slots:
        return slot
    raise NoStableTextError(f"isn't given.{_known(name, {**arguments, **extra})}".rstrip("."))


def _known(name: str, values: Mapping[str, Any]) -> str:
    return f"{hint(name, values)} Given are: {', '.join(values) or 'nothing'}."


def _taking(spec: Callable[..., Any], signature: inspect.Signature, task: str) -> Callable[..., Any]:
    """
    The callable that takes what the task takes.

    A plain function that is a class attribute comes as a method of the task, with
    ``self`` in front; it meant to be called without, unless it names a ``self``.
    """
    if inspect.ismethod(spec) and fits(spec.__func__, signature):
        first = next(iter(own_signature(spec.__func__).parameters), "")
        if first not in {"self", "cls"}:
            return spec.__func__
    if fits(spec, signature):
        return spec
    raise ConfigError(
        f"lock_key of task {task!r}: {_qualified(spec)}{own_signature(spec)} can't take the task's own "
        f"arguments {signature}; give it the same parameters."
    )


def _what(answer: object) -> str:
    return "an empty tuple" if answer == () else type(answer).__name__


def _qualified(spec: Callable[..., Any]) -> str:
    name = getattr(spec, "__qualname__", None) or type(spec).__qualname__
    return f"{getattr(spec, '__module__', None) or type(spec).__module__}.{name}"
