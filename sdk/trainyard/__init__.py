"""Steps and metrics of a training program, as lines on stdout that Trainyard reads.

    import trainyard

    trainyard.log(step=100, steps=5000, loss=0.31)

It works anywhere: outside of a job these are lines like any other. Where this package is not installed, copy this file
as `trainyard.py` beside the program. It needs Python 3.8 and nothing else.

`from trainyard import Client` submits jobs and reads their results (docs/how-to/automation.md). It is imported when
it is used.
"""

import json
import sys

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from trainyard.client import Client, Job, JobFailed, WaitTimeout
    from trainyard.metrics import Metric, Metrics
    from trainyard_protocol.answers.tuning import TrialView as Trial
    from trainyard_protocol.errors import TrainyardError

__all__ = ["Client", "Job", "JobFailed", "Metric", "Metrics", "TrainyardError", "Trial", "WaitTimeout", "log"]


def log(step: object = None, *, event: str = "progress", **values: object) -> None:
    """Print one JSON object with the step and every value that is a number, of NumPy, JAX or torch too.

    `epoch`, `epochs` and `steps` are positions, every other value is a metric. Never raises: what is no number is left
    out, and so is a line that cannot be written.
    """
    try:
        fields: dict[str, object] = {"event": event}
        if step is not None:
            fields["step"] = int(step)  # type: ignore[call-overload]
        for name, value in values.items():
            number = _number(value)
            if number is not None:
                fields[name] = number
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()
    except Exception:  # noqa: BLE001, S110 - a report must never end a training
        pass


def _number(value: object) -> "int | float | None":
    if isinstance(value, (bool, str, bytes)):
        return None
    try:
        return value if isinstance(value, int) else float(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - an array, None, or a tensor of another device
        return None


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainyard import client

    return getattr(client, name)
