"""Names, reasons and numbers of the run table."""

import math

from trainyard_server.dashboard.run_rows import (
    WHOLE_NAME,
    ReasonPlace,
    decimals_of,
    is_numeric,
    name_parts,
    reason_place,
)
from trainyard_server.services.views.run_columns import columns_of

SWEEP = ("resnet_sgd_momentum_0_9_lr_0_1", "resnet_sgd_momentum_0_9_lr_0_03", "resnet_sgd_momentum_0_9_lr_1_0")


def test_a_beginning_that_three_names_share_ends_behind_a_word_and_not_in_a_number() -> None:
    parts = name_parts({*SWEEP, "resnet_adam", "resnet_", "bert_1", "bert_2"})
    assert [parts[name] for name in SWEEP] == [
        ("resnet_sgd_momentum_0_9_lr_", rest, "") for rest in ("0_1", "0_03", "1_0")
    ]
    assert parts["resnet_adam"] == ("resnet_", "adam", "")
    assert parts["resnet_"] == ("", "resnet_", "")
    assert parts["bert_1"] == ("", "bert_1", "")


def test_a_name_of_more_than_forty_characters_keeps_its_end() -> None:
    names = [f"{'word_' * 8}{number}" for number in (7, 8, 9)]
    whole = "x" * WHOLE_NAME
    parts = name_parts({*names, whole})
    assert parts[whole] == ("", whole, "")
    assert all("".join(parts[name]) == name for name in names)
    assert [len(parts[name].tail) for name in names] == [14, 14, 14]


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
