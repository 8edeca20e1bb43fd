"""Statements that change rows by their attributes, each built once: a statement that is built anew takes as long as the
database takes to run it."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection, Insert, Update, bindparam, insert, update
from sqlalchemy import Table as SqlTable

from trainyard_server.storage.db.base.columns import AnyText, Table, storable


class ConcurrentUpdate(Exception):
    """The row has changed since it was read: read it again and decide again."""


def change(connection: Connection, table: type[Table], guards: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Set these values in the row for which all guards are equal. Raises ConcurrentUpdate if there is none."""
    parameters = {f"is_{name}": value for name, value in guards.items()}
    parameters |= {f"set_{name}": value for name, value in values.items()}
    if connection.execute(_update(table, tuple(guards), tuple(values)), parameters).rowcount != 1:
        raise ConcurrentUpdate


def stored(table: type[Table], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a query would return them."""
    texts = _texts(table)
    return {name: storable(value) if name in texts and value else value for name, value in values.items()}


def add(connection: Connection, rows: Sequence[Table]) -> None:
    """Insert rows of one table, which then have the defaults of what they lack."""
    if rows:
        connection.execute(_insert(type(rows[0])), [_completed(row) for row in rows])


@cache
def _update(table: type[Table], guards: tuple[str, ...], names: tuple[str, ...]) -> Update:
    column = _columns(table)
    where = (column[name] == bindparam(f"is_{name}") for name in guards)
    return update(_table(table)).where(*where).values({column[name]: bindparam(f"set_{name}") for name in names})


@cache
def _insert(table: type[Table]) -> Insert:
    return insert(_table(table))


@cache
def _columns(table: type[Table]) -> Mapping[str, Any]:
    """The columns of a table by the names of their attributes."""
    return {attribute.key: attribute.columns[0] for attribute in table.__mapper__.column_attrs}


@cache
def _texts(table: type[Table]) -> frozenset[str]:
    return frozenset(name for name, column in _columns(table).items() if isinstance(column.type, AnyText))


@cache
def _defaults(table: type[Table]) -> Mapping[str, Any]:
    """The default of each attribute, called where it is callable."""
    return {name: getattr(column.default, "arg", None) for name, column in _columns(table).items()}


def _completed(row: Table) -> Mapping[str, Any]:
    """The values of a row by the names of its columns."""
    table, have = type(row), row.__dict__
    have.update(stored(table, {name: have[name] for name in _texts(table) if name in have}))
    for name, default in _defaults(table).items():
        if name not in have:
            have[name] = default(None) if callable(default) else default
    return {column.name: have[name] for name, column in _columns(table).items()}


def _table(table: type[Table]) -> SqlTable:
    return cast("SqlTable", table.__table__)
