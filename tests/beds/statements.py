"""Statements that a database is asked to run."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event

from trainyard_server.storage.db.store import Store


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """The statements of the block, in their order."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(store._engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(store._engine, "before_cursor_execute", note)
