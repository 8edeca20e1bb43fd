"""Names, reasons and numbers of the run table."""

import math

from trainyard_server.dashboard.run_rows import ReasonPlace, decimals_of, is_numeric, reason_place
from trainyard_server.services.views.run_columns import columns_of


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
