import json
import math

import pytest

from trainyard_protocol.lines.progress import (
    MAX_LINE,
    MAX_METRICS,
    MAX_NAME,
    MAX_STEP,
    ProgressEvent,
    lower_is_better,
    parse,
)


@pytest.mark.parametrize(
    ("line", "mark"),
    [('{"event": "progress", "step": 120, "steps": 5000, "loss": 0.5}',
     ProgressEvent("progress", 120, 5000, metrics={"loss": 0.5})),
     ('{"event": "x", "step": 3, "epoch": 1.5, "epochs": 5, "a": 1, "b": true, "c": "2", "d": null, "e": [3]}',
     ProgressEvent("x", 3, epoch=1.5, epochs=5, metrics={"a": 1.0})),
     ('{"event": "x", "step": 3, "a": Infinity, "b": -Infinity, "c": 1e999}', ProgressEvent("x", 3,
     metrics={"a": math.inf, "b": -math.inf, "c": math.inf})),
     (f'{{"event": "x", "step": 3, "a": 1{"0" * 400}, "b": -1{"0" * 400}}}', ProgressEvent("x", 3,
     metrics={"a": math.inf, "b": -math.inf})), ('{"event": "x", "epoch": 2, "loss": 0.5}', ProgressEvent("x",
     epoch=2)), ('{"event": "x", "step": 3, "epoch": NaN, "epochs": -1}', ProgressEvent("x", 3)),
     ('{"event": "heartbeat", "step": 3, "seconds": 60.1}', ProgressEvent("heartbeat", 3)),
     ('{"event": "x", "step": 3, "": 1, "a\\u0000": 1, "\\ud800": 1, "\\u202e": 1}', ProgressEvent("x", 3)),
     (f'{{"event": "x", "step": 3, "{"n" * MAX_NAME}": 1, "{"n" * (MAX_NAME + 1)}": 1}}', ProgressEvent("x", 3,
     metrics={"n" * MAX_NAME: 1.0})), ('{"step":0,"event":"x"}', ProgressEvent("x", 0)),
     ('{"event": "saved", "model": "gs://b/d"}', ProgressEvent("saved")), ('{"event": "start", "stacks": "SIGUSR1"}',
     ProgressEvent("start", stacks="SIGUSR1")), ('{"event": "x", "step": 3, "steps": "many"}', ProgressEvent("x", 3)),
     (f'{{"event": "x", "step": {MAX_STEP}}}', ProgressEvent("x", MAX_STEP))],
)  # fmt: skip
def test_parse_of_a_report(line: str, mark: ProgressEvent) -> None:
    assert parse(line) == mark


@pytest.mark.parametrize(
    "line",
    [
        "", "step 3", ' {"event": "x", "step": 3}', '{"event": "x", "step": 3', '{"event": "x", "step": 3.0}',
        '{"event": "x", "step": true}', '{"event": "x", "step": -1}', '{"event": "x", "step": "3"}',
        f'{{"event": "x", "step": {MAX_STEP + 1}}}', '{"event": 7, "step": 3}', '{"event": "", "step": 3}',
        '{"step": 3, "of": "event"}', '{"event": ' + "[" * (MAX_LINE - 20),
        '{"event": "x", "step": 3, "more": "' + "x" * MAX_LINE + '"}',
    ],
)  # fmt: skip
def test_parse_of_anything_else_is_none(line: str) -> None:
    assert parse(line) is None


def test_of_very_many_metrics_the_first_are_taken() -> None:
    fields = {f"m{number}": number for number in range(300)}
    mark = parse(json.dumps({"event": "x", "step": 3} | fields))
    assert mark is not None
    assert list(mark.metrics) == [f"m{number}" for number in range(MAX_METRICS)]
    assert list(mark.metrics.values()) == [float(number) for number in range(MAX_METRICS)]


def test_direction_is_in_the_words_of_the_name() -> None:
    lower = ("loss", "val_loss", "valLoss", "eval/RMSE")
    higher = ("held_out_accuracy", "top-1 acc", "neg_log_loss", "neg_root_mean_squared_error")
    unknown = (
        *("learning_rate", "accelerators", "time_to_accuracy", "accuracy_drop", "loss_scale"),
        *("error_of_the_score", "examples_per_second"),
    )
    table = dict.fromkeys(lower, True) | dict.fromkeys(higher, False) | dict.fromkeys(unknown)
    assert {name: lower_is_better(name) for name in table} == table
