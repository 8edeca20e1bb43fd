"""Sources of metrics, the most trusted first. Pure."""

from enum import IntEnum

from trainyard_protocol.lines.progress import ProgressEvent


class MetricSource(IntEnum):
    """The source of a metric's points. A metric that several sources have is shown as the least of them has it."""

    LOGGED = 0
    """Calls of MLflow's tracking: the program names the step and the time."""

    PRINTED = 1
    """Lines of the log with a step."""

    WRITTEN = 2
    """TensorBoard's event files."""

    GUESSED = 3
    """Lines of the log without a step: an epoch in its place, or a result at the end."""


def source_of(event: ProgressEvent) -> MetricSource:
    """The source of the metrics of a line."""
    return MetricSource.GUESSED if event.is_guess else MetricSource.PRINTED
