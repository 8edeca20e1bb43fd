"""Writes that a transaction has made in memory alone: each row is one UPDATE, and all events are one INSERT."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from trainyard_server.storage.db.base.columns import Table
from trainyard_server.storage.db.base.models import EventRow
from trainyard_server.storage.db.base.statements import add, change


@dataclass(slots=True)
class PendingWrites:
    _rows: dict[tuple[type[Table], tuple[object, ...]], tuple[dict[str, Any], dict[str, Any]]] = field(
        default_factory=dict
    )
    """What a row has in the database, and the values to set, by table and key."""
    _events: list[EventRow] = field(default_factory=list)

    def change(
        self, table: type[Table], key: Mapping[str, Any], before: Mapping[str, Any], values: Mapping[str, Any]
    ) -> None:
        """Set values of a row in which `before` is true, unless an earlier change has already asked for that."""
        guards, pending = self._rows.setdefault((table, tuple(key.values())), ({**key, **before}, {}))
        if not pending.keys() & before.keys():
            guards.update(before)
        pending.update(values)

    def add_event(self, event: EventRow) -> None:
        self._events.append(event)

    def join(self, later: "PendingWrites") -> None:
        """Take over writes that were made after these."""
        for place, (guards, values) in later._rows.items():
            mine, pending = self._rows.setdefault(place, (guards, {}))
            mine.update({name: value for name, value in guards.items() if name not in pending})
            pending.update(values)
        self._events += later._events

    def flush(self, connection: Connection) -> None:
        """Write them. Raises ConcurrentUpdate where the database has something else than memory had."""
        rows, events = list(self._rows.items()), list(self._events)
        self._rows.clear()
        self._events.clear()
        for (table, _), (guards, values) in rows:
            change(connection, table, guards, values)
        add(connection, events)
