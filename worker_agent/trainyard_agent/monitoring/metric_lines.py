"""Measurements out of the lines of a metric file. Pure.

cloudml-hypertune writes an object a line: the metric under its tag, and `global_step`, both as texts. The file is a
program's: a line that is anything else is left out.
"""

import json
import math

from trainyard_protocol.sync import MAX_REPORTED, TrialMeasurement

_LONGEST_LINE = 4096
_LARGEST_STEP = 2**62


def measurements_in(content: bytes, tag: str) -> tuple[TrialMeasurement, ...]:
    """The last MAX_REPORTED measurements of the metric with that tag, in the order of the file."""
    lines = content.split(b"\n")[-2 * MAX_REPORTED :]
    found = (_measurement(line, tag) for line in lines if 0 < len(line) <= _LONGEST_LINE)
    return tuple(one for one in found if one is not None)[-MAX_REPORTED:]


def _measurement(line: bytes, tag: str) -> TrialMeasurement | None:
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):  # also a line that is being written
        return None
    if not isinstance(report, dict):
        return None
    value = _number(report.get(tag))
    step = _number(report.get("global_step", "0"))
    if value is None:
        return None
    return TrialMeasurement(step=int(min(max(step or 0.0, 0.0), _LARGEST_STEP)), value=value)


def _number(given: object) -> float | None:
    """A finite number, also as a text; None for all else."""
    if not isinstance(given, str | int | float) or isinstance(given, bool):
        return None
    try:
        number = float(given)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
