"""Patterns of filters in SQL: a `*` stands for any text."""

from typing import Any

from sqlalchemy import ColumnElement, true


def like(column: Any, value: str) -> ColumnElement[bool]:
    """The condition that a column has a value, in which a `*` stands for any text."""
    if value == "*":
        return true()
    if "*" not in value:
        exact: ColumnElement[bool] = column == value
        return exact
    matches: ColumnElement[bool] = column.like(escaped(value).replace("*", "%"), escape="\\")
    return matches


def escaped(text: str) -> str:
    """The text for LIKE, as it is."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
