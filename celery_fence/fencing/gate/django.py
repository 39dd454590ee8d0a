"""A transaction of Django's ORM; knows Django's connections by their methods and imports nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from celery_fence.errors import ConfigError
from celery_fence.fencing.gate.dbapi import PARAMETER, answer_of
from celery_fence.fencing.gate.mark import Answer, Dialect, Wish
from celery_fence.fencing.gate.place import no_transaction
from celery_fence.fencing.gate.table import dialect_of


@dataclass(frozen=True, slots=True)
class DjangoPlace:
    """The transaction of ``django.db.connection``, or of one of ``connections[...]``; nothing is remembered of it."""

    connection: Any
    dialect: Dialect

    @classmethod
    def of(cls, connection: Any) -> Self:
        """The place of one of Django's connections; `ConfigError` for anything else of Django's."""
        vendor = getattr(connection, "vendor", None)
        if vendor is None or not hasattr(connection, "in_atomic_block"):
            raise ConfigError(
                f"A guard takes django.db.connection or connections['alias'], not {type(connection).__qualname__}."
            )
        return cls(connection, dialect_of(vendor))

    def check_transaction(self) -> None:
        """See `Place`."""
        if not self.connection.in_atomic_block and self.connection.get_autocommit():
            raise no_transaction("Write inside `with transaction.atomic():`.")

    def has_passed(self, wish: Wish, *, once: bool) -> bool:  # noqa: ARG002 - see the class
        """Never known."""
        return False

    def remember(self, wish: Wish, *, once: bool) -> None:
        """Not kept."""

    def ask(self, sql: str, parameters: Mapping[str, Any]) -> Answer:
        """See `mark.Ask`."""
        names = PARAMETER.findall(sql)
        with self.connection.cursor() as cursor:
            # Django's own placeholder, which it turns into the driver's.
            cursor.execute(PARAMETER.sub("%s", sql), [parameters[name] for name in names])
            return answer_of(cursor)
