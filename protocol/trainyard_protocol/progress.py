"""What a program says of itself on stdout, one JSON object a line: how far it is, and how it can be asked more.

    {"event": "progress", "step": 120, "steps": 5000}     any name will do: its step, and of how many
    {"event": "checkpoint", "step": 100}                  what step 100 has done survives this process
    {"event": "heartbeat", "step": 120}                   it lives, which does not say that it gets on
    {"event": "start", "stacks": "SIGUSR1"}               on this signal it writes its stacks, and changes nothing
    {"event": "done", "step": 5000}, {"event": "stopped", "step": 120}      no further step comes

`docs/reliability-of-training.md` is the contract as users read it. Every line of every program comes by here, so
most are told apart by their first character.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

MAX_LINE = 4096
"""A longer line, in characters, is nobody's report."""

MAX_STEP = 2**62

START, CHECKPOINT, HEARTBEAT = "start", "checkpoint", "heartbeat"
LAST = frozenset({"done", "stopped"})
"""Events after which no step is expected."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One such line. `step` and `steps` are None where it names none; `stacks` is a signal's name, or ""."""

    event: str
    step: int | None = None
    steps: int | None = None
    stacks: str = ""


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
    return Mark(event, step, steps if _is_step(steps) else None, stacks if isinstance(stacks, str) else "")


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_STEP
