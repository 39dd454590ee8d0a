"""
Whether any setting has changed.

Celery looks a setting up in several places, under several spellings. That costs
hundreds of microseconds with Django, too much for every run of a task. So the values
are looked up once, and before each use a *fingerprint* of the places tells whether
anything has changed since: `app.conf.update(...)`, `app.conf.x = ...` and Django's
`override_settings` count at once.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from celery_fence.task.spelling import ABSENT, respelled


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprint:
    """What was found where. The objects are held, so an identity can't be given to another one meanwhile."""

    objects: tuple[object, ...]
    sizes: tuple[int, ...]

    def same_as(self, other: Fingerprint) -> bool:
        """By identity: ``1``, ``1.0`` and ``True`` are equal, and not the same setting."""
        return (
            self.sizes == other.sizes
            and len(self.objects) == len(other.objects)
            and all(map(operator.is_, self.objects, other.objects))
        )


def fingerprint(app: Any, names: tuple[str, ...]) -> Fingerprint:
    """What the places of *app*'s configuration say about *names* right now. A few microseconds."""
    conf = app.conf
    if not app.configured:
        conf.finalize()
    spelled = _spellings(names, conf.prefix)
    objects: list[object] = []
    sizes: list[int] = []
    for place in conf.maps[:-1]:  # the last one holds Celery's own defaults
        _look_into(place, spelled, objects, sizes)
    return Fingerprint(tuple(objects), tuple(sizes))


def _look_into(place: Any, spelled: frozenset[str], objects: list[object], sizes: list[int]) -> None:
    holder = getattr(place, "obj", None)  # Celery's wrapper around a module, a class or Django's settings
    if holder is None:
        _look_into_table(place, spelled, objects, sizes)
        return
    wrapped = vars(holder).get("_wrapped") if hasattr(holder, "__dict__") else None
    if wrapped is None:
        objects.extend(getattr(holder, name, ABSENT) for name in spelled)
        return
    # Django: each `override_settings` is an object of its own on top of the one before, and a change goes
    # into the one on top. Asking Django for names that it hasn't got takes microseconds; this doesn't.
    objects.append(wrapped)
    _look_into_table(vars(wrapped), spelled, objects, sizes)


def _look_into_table(
    table: Mapping[str, Any], spelled: frozenset[str], objects: list[object], sizes: list[int]
) -> None:
    sizes.append(len(table))
    objects.extend(table[name] for name in spelled & table.keys())


@lru_cache(maxsize=32)
def _spellings(names: tuple[str, ...], prefix: str | None) -> frozenset[str]:
    """Every spelling under which Celery would read one of *names*; old-style upper case included."""
    return frozenset(
        spelling
        for name in names
        for spelling in (name, name.upper(), f"CELERY_{name.upper()}", respelled(name, prefix))
    )
