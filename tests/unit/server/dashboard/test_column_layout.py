"""Columns of the run table: their order and widths in a cookie, their reasons and numbers."""

import math

import pytest

from trainyard_server.dashboard.column_layout import ColumnLayout
from trainyard_server.dashboard.run_rows import ReasonPlace, decimals_of, is_numeric, reason_place
from trainyard_server.services.views.run_columns import RunColumn, columns_of

DEFAULT = ("state", "job", "params.lr", "metric", "progress")


def fields(columns: "list[RunColumn] | tuple[RunColumn, ...]") -> list[str]:
    return [column.field for column in columns]


def test_columns_have_the_readers_order_and_new_ones_stay_behind_their_neighbour() -> None:
    layout = ColumnLayout.from_cookie("column=progress&column=job&column=state&column=params.gone")
    assert fields([*layout.ordered(columns_of(DEFAULT))]) == ["progress", "job", "params.lr", "metric", "state"]
    assert fields([*ColumnLayout().ordered(columns_of(DEFAULT))]) == list(DEFAULT)


def test_every_column_has_a_width_as_soon_as_one_of_them_has() -> None:
    columns = columns_of(("state", "job", "params.lr"))
    assert ColumnLayout.from_cookie("width=metric%3A90").widths_of(columns) == ()
    assert ColumnLayout.from_cookie("width=params.lr%3A90").widths_of(columns) == [24, 116, 320, 90]


@pytest.mark.parametrize(
    "text",
    [
        "column=nothing&column=&column=params.",
        "width=job%3A39&width=state%3A1601&width=metric%3A-50&width=progress%3A%C2%B2%C2%B2&width=owner&width=%3A90",
        "width=job%3A" + "9" * 1000,
        "column=job&" * 1000,
        "%%%;\x00&&=&column",
    ],
)
def test_a_damaged_cookie_is_ignored(text: str) -> None:
    assert ColumnLayout.from_cookie(text) == ColumnLayout()


def test_a_reason_spans_the_metric_and_the_progress_that_are_beside_each_other() -> None:
    places = {
        ("job", "metric", "progress"): ReasonPlace("metric", 2),
        ("progress", "metric", "job"): ReasonPlace("progress", 2),
        ("metric", "job", "progress"): ReasonPlace("metric", 1),
        ("job", "progress"): ReasonPlace("progress", 1),
        ("job", "metrics.loss"): None,
    }
    assert {fields: reason_place(columns_of(fields)) for fields in places} == places


def test_numbers_of_a_column_have_the_same_decimals_unless_their_sizes_differ_too_much() -> None:
    assert decimals_of([0.066, 0.0812, None]) == 4
    assert decimals_of([7.0, 12.0]) == 0
    assert decimals_of([1183.4, 0.5]) is None
    assert decimals_of([2e-9, 3e-9]) is None
    assert decimals_of([math.nan, math.inf, "adam"]) is None
    assert is_numeric(["0.1", "1e-3", None, 2.0])
    assert not is_numeric(["0.1", "adam"])
