"""Measurements out of the lines of a metric file. Pure.

cloudml-hypertune writes an object a line: the metric under its tag, and `global_step`, both as texts. The file is a
program's: a line that is anything else is left out.
"""

import json
import math
from collections.abc import Iterator, Mapping

from trainyard_protocol.lines.progress import MAX_NAME
from trainyard_protocol.wire.sync import MAX_OTHERS, MAX_REPORTED, TrialMeasurement

_FIELDS = frozenset({"global_step", "timestamp", "trial", "checkpoint_path"})
_LONGEST_LINE = 4096
_LARGEST_STEP = 2**62


def measurements_in(content: bytes, tag: str) -> tuple[TrialMeasurement, ...]:
    """The last MAX_REPORTED measurements of the metric with that tag, in the order of the file."""
    measurements = (_measurement(report, tag) for report in _reports(content))
    return tuple(measurement for measurement in measurements if measurement is not None)[-MAX_REPORTED:]


def others_in(content: bytes) -> dict[str, TrialMeasurement]:
    """The newest measurement of each metric in a file, MAX_OTHERS at most."""
    newest: dict[str, TrialMeasurement] = {}
    for report in _reports(content):
        for name in report:
            if name in _FIELDS:
                continue
            value = _measurement(report, name) if 0 < len(name) <= MAX_NAME and name.isprintable() else None
            if value is not None and (name in newest or len(newest) < MAX_OTHERS):
                newest[name] = value
    return newest


def _reports(content: bytes) -> Iterator[dict[str, object]]:
    for line in content.split(b"\n")[-2 * MAX_REPORTED :]:
        if 0 < len(line) <= _LONGEST_LINE:
            try:
                report = json.loads(line)
            except (ValueError, RecursionError):  # also a line that is being written
                continue
            if isinstance(report, dict):
                yield report


def _measurement(report: Mapping[str, object], tag: str) -> TrialMeasurement | None:
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
