"""Columns of every table: times, texts, names of states; and the base of the tables."""

from collections.abc import Collection
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import JSON, DateTime, MetaData, String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

from trainyard_protocol.states import JobState, Reason, ReplicaState, RunState
from trainyard_server.domain.tuning.study import TrialPhase

_E = TypeVar("_E", bound=StrEnum)


class UtcTime(TypeDecorator[datetime]):
    """A time: with its zone in Python, in UTC in the database. SQLite stores no zone, so it is added again."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.replace(tzinfo=UTC)


def storable(text: str) -> str:
    """The text as a column of `AnyText` has it."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class AnyText(TypeDecorator[str]):
    """Text that may come from a program: what PostgreSQL cannot store, NUL and lone surrogates, becomes U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else storable(value)


class Name(TypeDecorator[_E]):
    """A member of an enum by its name, in a text column: a new member needs no migration."""

    impl = String(32)
    cache_ok = True

    def __init__(self, kind: type[_E]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: _E | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else value.value

    def process_result_value(self, value: str | None, dialect: Dialect) -> _E | None:  # noqa: ARG002
        return None if value is None else self.kind(value)


class Table(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy as it stands
        datetime: UtcTime,
        dict[str, Any]: JSON,
        dict[str, str]: JSON,
        list[Any]: JSON,
        JobState: Name(JobState),
        RunState: Name(RunState),
        ReplicaState: Name(ReplicaState),
        Reason: Name(Reason),
        TrialPhase: Name(TrialPhase),
    }


def values_of(row: object, view: type[BaseModel], *, but: Collection[str] = ()) -> dict[str, Any]:
    """The values of a row for the fields of a view that it has under the same name, without `but` some."""
    names = [name for name in view.model_fields if name not in but]
    return {name: getattr(row, name) for name in names if hasattr(row, name)}
