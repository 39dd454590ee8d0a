"""
What is done to an object before it is flushed: whose write it is, and its stamp.

The stamp is set as any attribute, so the unit of work puts it into its UPDATE, in
joined-table inheritance also where only a subclass's table has changed. The condition
is added to the statement itself (`rows`). Nothing here asks the database, but for
what SQLAlchemy would load for the flush anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from sqlalchemy import Connection, Table, inspect
from sqlalchemy.orm import InstanceState, LoaderCallableStatus, Mapper, Session
from sqlalchemy.orm.attributes import flag_modified

from celery_fence.errors import LockKeyError, UnfencedWrite
from celery_fence.fencing.sqlalchemy.condition import Mark
from celery_fence.fencing.sqlalchemy.guard import Guard, Identity, guard_of
from celery_fence.fencing.sqlalchemy.moves import moved
from celery_fence.fencing.sqlalchemy.rule import OWNER, TOKEN, Rule, rule_of
from celery_fence.fencing.sqlalchemy.seen import rows_seen
from celery_fence.fencing.writer import Writer

NO_VALUE: Final = LoaderCallableStatus.NO_VALUE


@dataclass(frozen=True, slots=True)
class Row:
    """An object on its way into the database."""

    mapper: Mapper[Any]
    target: Any
    state: InstanceState[Any]
    table: Table
    rule: Rule
    guard: Guard

    @classmethod
    def of(cls, mapper: Mapper[Any], target: Any) -> Self:
        """The row of *target*, which is in a session."""
        state = inspect(target)
        table: Any = mapper.attrs[TOKEN].columns[0].table
        session = state.session
        guard = guard_of(session) if isinstance(session, Session) else Guard()
        return cls(mapper, target, state, table, rule_of(table) or Rule(), guard)

    def changes(self, name: str) -> bool:
        """Whether the attribute *name* may have been set; False is sure."""
        return name in self.state.committed_state

    def old(self, name: str) -> Any:
        """The value that the attribute *name* had when it was read; NO_VALUE where it was set without being read."""
        return self.state.committed_state[name] if self.changes(name) else getattr(self.target, name)

    def identities(self) -> set[Identity]:
        """The row by its primary key, as it was and as it will be."""
        names = [self.mapper.get_property_by_column(column).key for column in self.table.primary_key.columns]
        now = (self.table, tuple(getattr(self.target, name) for name in names))
        if not any(map(self.changes, names)):
            return {now}
        return {now, (self.table, tuple(map(self.old, names)))}

    def key(self, connection: Connection) -> str:
        """
        The key that the row belongs to.

        Raises:
            UnfencedWrite: the change would move it to another key.

        """
        key = self.new_key()
        if not any(map(self.changes, self.rule.columns)):
            return key
        was = self.old_key(connection)
        if was not in {None, key}:
            raise moved(self.table, str(was), key)
        return key

    def old_key(self, connection: Connection) -> str | None:
        """The key it belonged to; one SELECT where that was overwritten unread. None for a row that isn't there."""
        values = {name: self.old(name) for name in self.rule.columns}
        if NO_VALUE not in values.values():
            return self.rule.key_of(values)
        columns = self.table.primary_key.columns
        identity = tuple(self.old(self.mapper.get_property_by_column(column).key) for column in columns)
        names = [column.key for column in columns]
        seen = rows_seen(connection, self.table, self.rule, names, [identity], lock="current")
        return seen[identity].key(self.rule) if identity in seen else None

    def new_key(self) -> str:
        """The key that the row will belong to. `LockKeyError` where it isn't known before the row is inserted."""
        return self.rule.key_of({name: getattr(self.target, name) for name in self.rule.columns})

    def has_changes(self) -> bool:
        """Whether any of its columns would be written."""
        names = [name for name in self.state.committed_state if name in self.mapper.column_attrs]
        return any(self.state.attrs[name].history.has_changes() for name in names)

    def loaded_token(self) -> Any:
        """
        The token that belongs to the values the object has; None where none is known.

        To be asked first: whatever else is asked may load the row anew. What somebody set
        without having read anything of the row says nothing about it.
        """
        if self.state.committed_state.get(TOKEN) is NO_VALUE and not self.was_read():
            return None
        return self.target.__dict__.get(TOKEN)

    def read_token(self, writer: Writer, loaded: Any) -> Any:
        """
        The token that the row had when it was read, where *loaded* was set since to *writer*'s own.

        Which is harmless: the row will be stamped with that anyway. One that `merge` brings
        along from an object read earlier stays, as what was read is what is overwritten.

        Raises:
            UnfencedWrite: it was set to something that the row never had.

        """
        read = self.state.committed_state.get(TOKEN, NO_VALUE)
        if read is NO_VALUE:
            return loaded
        possible = isinstance(loaded, int) and loaded <= max(read or 0, writer.token or 0)
        if loaded is None or (possible and loaded == writer.token):
            return read
        if writer.enforces and not possible:
            raise UnfencedWrite(
                f"{TOKEN} of a row of {self.table} was set to {loaded!r} by hand: nothing was written. The mixin sets "
                f"this column and {OWNER} itself, to those of the lease; leave them alone."
            )
        return loaded

    def was_read(self) -> bool:
        """Whether the object has values of the row's, besides those that say which row it is."""
        identifying = {*self.mapper.primary_key, self.mapper.polymorphic_on}
        return any(
            identifying.isdisjoint(attribute.columns)
            for attribute in self.mapper.column_attrs
            if attribute.key in self.target.__dict__
            and self.state.committed_state.get(attribute.key) is not NO_VALUE
        )

    def check_token_read(self, what: str) -> None:
        """Raise `UnfencedWrite` where values were read without the token they belong to: `load_only`, `defer`."""
        if TOKEN not in self.target.__dict__ and self.was_read():
            raise UnfencedWrite(
                f"A guard can't fence {what} of what was read without its token: nothing was written. Name "
                f"{TOKEN} in load_only(), and don't defer it."
            )

    def show(self) -> None:
        """Write the token and owner that the row has once more: a fence trigger refuses what shows none."""
        for name in (TOKEN, OWNER):
            setattr(self.target, name, getattr(self.target, name))
            flag_modified(self.target, name)

    def stamp(self, writer: Writer) -> None:
        """Give the row its writer's token and owner, written even where they are what they were."""
        for name, value in ((TOKEN, writer.token), (OWNER, writer.owner)):
            setattr(self.target, name, value)
            flag_modified(self.target, name)


def before_insert(mapper: Mapper[Any], _connection: Any, target: Any) -> None:
    """Stamp a new row whose key is leased here, so that an older holder of the key can't change it later."""
    row = Row.of(mapper, target)
    try:
        scope = row.new_key()
    except LockKeyError:
        scope = ""  # its key comes from the database
    writer = next((each for each in row.guard.writers(row.rule) if each.compares and each.key == scope), None)
    if writer is not None and row.guard.checked(writer, scope, f"INSERT {row.table}") is not None:
        setattr(target, TOKEN, writer.token)
        setattr(target, OWNER, writer.owner)
    elif getattr(target, TOKEN, None):
        setattr(target, TOKEN, 0)  # made from another row: its token says nothing about this one
        setattr(target, OWNER, None)


def after_insert(mapper: Mapper[Any], _connection: Any, target: Any) -> None:
    """Nobody else sees the row before the transaction is over: what follows in it needs no lease."""
    row = Row.of(mapper, target)
    session = row.state.session
    savepoint = session.get_nested_transaction() if isinstance(session, Session) else None
    row.guard.born.update(dict.fromkeys(row.identities(), savepoint))


def before_update(mapper: Mapper[Any], connection: Any, target: Any) -> None:
    """Find out whose write this is, and stamp the row."""
    row = Row.of(mapper, target)
    if not row.has_changes():
        return
    loaded = row.loaded_token()
    if _is_new(row):
        row.show()
        return
    writer = _mark(row, connection, "UPDATE", loaded)
    if writer is not None and (writer.enforces or (loaded or 0) <= (writer.token or 0)):
        row.stamp(writer)


def before_delete(mapper: Mapper[Any], connection: Any, target: Any) -> None:
    """Find out whose write this is."""
    row = Row.of(mapper, target)
    loaded = row.loaded_token()
    if not _is_new(row):
        _mark(row, connection, "DELETE", loaded)


def _is_new(row: Row) -> bool:
    """Whether this very transaction has inserted the row."""
    identities = row.identities()
    births = [row.guard.born[each] for each in identities if each in row.guard.born]
    if births:
        row.guard.born.update(dict.fromkeys(identities, births[0]))
    return bool(births)


def _mark(row: Row, connection: Connection, verb: str, loaded: int | None) -> Writer | None:
    """Note on whose behalf the row is written; None where the write isn't compared."""
    what = f"{verb} {row.table}"
    scope = _scope(row, connection, what)
    writer = None if scope is None else _writer(row, scope, what)
    loaded = loaded if writer is None else row.read_token(writer, loaded)
    row.guard.marks.update(dict.fromkeys(row.identities(), Mark(writer, scope or "", loaded)))
    return writer


def _scope(row: Row, connection: Connection, what: str) -> str | None:
    """The key of a row that may be written as it was read; None for another one, which only ``enforce`` refuses."""
    try:
        row.check_token_read(what)
        return row.key(connection)
    except (LockKeyError, UnfencedWrite):
        match row.guard.mode_of(row.rule):
            case "enforce":
                raise
            case "shadow":
                row.guard.let_pass(row.rule, str(row.table), what)
        return None


def _writer(row: Row, scope: str, what: str) -> Writer | None:
    """Who writes *scope*, found out once for each flush."""
    writer = row.guard.flushed_by.get((row.table, scope))
    if writer is None:
        writer = row.guard.writer_for(row.rule, scope, what)
        row.guard.flushed_by[row.table, scope] = writer
    return writer
