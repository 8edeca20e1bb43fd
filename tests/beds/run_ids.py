"""Run ids of this process. Processes of a run are found by its id on the whole machine, and test suites run side by
side there."""

import uuid

_OF_THIS_PROCESS = uuid.uuid4().hex[:16]


def unique_run(digit: str) -> str:
    """The run id of this process that begins with this hexadecimal digit."""
    return digit * 16 + _OF_THIS_PROCESS
