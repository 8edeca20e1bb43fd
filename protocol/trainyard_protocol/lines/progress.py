"""Progress events that a program writes to stdout, one JSON object a line.

    {"event": "progress", "step": 120, "steps": 5000}     any event name: the step and the total
    {"event": "progress", "step": 120, "epoch": 2, "epochs": 5, "loss": 0.31}     with metrics
    {"event": "checkpoint", "step": 100}                  step 100 is saved
    {"event": "heartbeat", "step": 120}                   alive, but not necessarily progressing
    {"event": "start", "stacks": "SIGUSR1"}               on this signal it writes its stacks and goes on
    {"event": "done", "step": 5000}, {"event": "stopped", "step": 120}      no more steps

The contract is in `docs/tutorials/your-own-trainer.md` and `docs/how-to/metrics.md`. `parse` runs on every line of
every program, so it rejects most by their first character. `progress_reader` reads other lines too.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_LINE = 4096
"""Longer lines, in characters, are ignored."""

MAX_STEP = 2**62

MAX_METRICS = 64
"""Further metrics of a line are ignored."""

MAX_NAME = 100
"""Metrics with longer names, in characters, or unprintable ones are ignored."""

START, CHECKPOINT, HEARTBEAT = "start", "checkpoint", "heartbeat"
FINAL_EVENTS = frozenset({"done", "stopped"})
"""Events after which no step is expected."""

_NO_METRICS = frozenset({"event", "step", "steps", "epoch", "epochs", "stacks"})

LOWER_WORDS = frozenset(
    "cer cost err error fid loss mae mape mse nll perplexity ppl rmse wer".split()  # noqa: SIM905
)
"""Words of metrics that are better when lower."""
HIGHER_WORDS = frozenset(
    "acc accuracy auc auroc bleu dice f1 iou map miou ndcg precision psnr r2 recall reward rouge score ssim".split()  # noqa: SIM905
)
OTHER_WORDS = frozenset(
    "delta diff difference drop gap ms s scale sec seconds std time var variance weight".split()  # noqa: SIM905
)
"""Words of what is of another kind, although it has the word of a metric."""
VALIDATION_WORDS = frozenset(
    "dev eval evaluation held heldout holdout test val valid validation".split()  # noqa: SIM905
)
"""Words of names of data that is not trained on."""
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """A parsed line. `stacks` is a signal's name or ""; `metrics` has the other numbers of a line with a step, NaN and
    infinities included. `event` is "" for a line without one. `is_position`: whether the program is at `step` now;
    false for metrics of an epoch or an evaluation, which only belong to that step. `is_guess`: whether the program
    named no step: it is an epoch's, or the last one."""

    event: str
    step: int | None = None
    steps: int | None = None
    stacks: str = ""
    epoch: float | None = None
    epochs: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_position: bool = True
    is_guess: bool = False


def lower_is_better(name: str) -> bool | None:
    """The direction of a metric by the words of its name; None where they do not tell."""
    words, text = _words(name), name.casefold()
    is_lower, is_higher = bool(words & LOWER_WORDS) or "loss" in text, bool(words & HIGHER_WORDS) or "accuracy" in text
    if is_lower is is_higher or words & OTHER_WORDS:
        return None
    return is_lower is not ("neg" in words)  # scikit-learn's scorers, such as neg_log_loss


def is_validation(name: str) -> bool:
    """Whether the name says that the metric is of examples that are not trained on, such as val_loss."""
    return bool(_words(name) & VALIDATION_WORDS)


def _words(name: str) -> set[str]:
    return set(_WORD.findall(name.casefold()))


def parse(text: str) -> ProgressEvent | None:
    """Parse a line of stdout; None if it is not a progress event. Never raises."""
    if not text.startswith("{") or len(text) > MAX_LINE or '"event"' not in text:
        return None
    fields = json_fields(text)
    return None if fields is None else event_of(fields)


def json_fields(text: str) -> Mapping[str, Any] | None:
    """The JSON object in a line; None if it is none."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, Mapping) else None


def event_of(fields: Mapping[str, Any]) -> ProgressEvent | None:
    """The progress event in a JSON object; None if it has no `event`, or no valid `step` in it."""
    event, stacks = fields.get("event"), fields.get("stacks", "")
    if not isinstance(event, str) or not event:
        return None
    step = fields.get("step")
    if step is not None and not _is_step(step):
        return None
    steps = fields.get("steps")
    return ProgressEvent(
        event,
        step,
        steps if _is_step(steps) else None,
        stacks if isinstance(stacks, str) else "",
        epoch_number(fields.get("epoch")),
        epoch_number(fields.get("epochs")),
        metrics_of(fields) if step is not None and event != HEARTBEAT else {},
    )


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_STEP


def epoch_number(value: object) -> float | None:
    """A whole or fractional epoch; None for any other value."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_STEP:
        return value
    return None


def metrics_of(fields: Mapping[str, object]) -> dict[str, float]:
    """The numbers of an object that are neither step nor epoch."""
    metrics: dict[str, float] = {}
    for name, value in fields.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _NO_METRICS:
            if not 0 < len(name) <= MAX_NAME or not name.isprintable():
                continue
            if len(metrics) == MAX_METRICS:
                break
            metrics[name] = _float(value)
    return metrics


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of float
        return math.inf if value > 0 else -math.inf
