"""What a program says of itself on stdout, one JSON object a line: how far it is, and how it can be asked more.

    {"event": "progress", "step": 120, "steps": 5000}     any name will do: its step, and of how many
    {"event": "progress", "step": 120, "epoch": 2, "epochs": 5, "loss": 0.31}     and what it has measured there
    {"event": "checkpoint", "step": 100}                  what step 100 has done survives this process
    {"event": "heartbeat", "step": 120}                   it lives, which does not say that it gets on
    {"event": "start", "stacks": "SIGUSR1"}               on this signal it writes its stacks, and changes nothing
    {"event": "done", "step": 5000}, {"event": "stopped", "step": 120}      no further step comes

`docs/reliability-of-training.md` and `docs/metrics.md` are the contract as users read it. Every line of every program
comes by here, so most are told apart by their first character.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_LINE = 4096
"""A longer line, in characters, is nobody's report."""

MAX_STEP = 2**62

MAX_METRICS = 64
"""So many metrics of one line are taken, the first; the others are left out."""

MAX_NAME = 100
"""A metric with a longer name, in characters, is left out; so is one whose name cannot be printed."""

START, CHECKPOINT, HEARTBEAT = "start", "checkpoint", "heartbeat"
LAST = frozenset({"done", "stopped"})
"""Events after which no step is expected."""

_NO_METRICS = frozenset({"event", "step", "steps", "epoch", "epochs", "stacks"})


@dataclass(frozen=True, slots=True)
class Mark:
    """One such line. `step`, `steps`, `epoch` and `epochs` are None where it names none; `stacks` is a signal's name,
    or "". `metrics`: every other number of a line with a step, NaN and the infinities as they are."""

    event: str
    step: int | None = None
    steps: int | None = None
    stacks: str = ""
    epoch: float | None = None
    epochs: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def parse(text: str) -> Mark | None:
    """What a line of stdout reports, or None where it is no report. Never raises."""
    if not text.startswith("{") or len(text) > MAX_LINE or '"event"' not in text:
        return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, Mapping):
        return None
    event, stacks = said.get("event"), said.get("stacks", "")
    if not isinstance(event, str) or not event:
        return None
    step = said.get("step")
    if step is not None and not _is_step(step):
        return None
    steps = said.get("steps")
    return Mark(
        event,
        step,
        steps if _is_step(steps) else None,
        stacks if isinstance(stacks, str) else "",
        _epoch(said.get("epoch")),
        _epoch(said.get("epochs")),
        _metrics(said) if step is not None and event != HEARTBEAT else {},
    )


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_STEP


def _epoch(value: object) -> float | None:
    """Some count whole epochs, some say 1.37; what is neither is no epoch."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_STEP:
        return value
    return None


def _metrics(said: Mapping[str, object]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in said.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _NO_METRICS:
            if not 0 < len(name) <= MAX_NAME or not name.isprintable():
                continue
            if len(found) == MAX_METRICS:
                break
            found[name] = _float(value)
    return found


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number that no float can hold
        return math.inf if value > 0 else -math.inf
