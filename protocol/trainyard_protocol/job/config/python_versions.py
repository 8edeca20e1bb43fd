"""Versions of Python that a job may name, by its runtimeVersion. They choose nothing here: the runtime decides.

Source: `pythonVersion` in the discovery document `ml.v1`, and the service's list of runtime versions.
"""

import re

from trainyard_protocol.errors import quoted

_OF_SERVICE = ("2.7", "3.5", "3.7")
_OF_RUNTIMES = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
"""Versions that the service never had: those of images and of runtimes that a site adds."""

_NUMERIC = re.compile(r"([12])\.(\d{1,2})")


def allowed(runtime_version: str) -> tuple[str, ...]:
    """The versions for a runtime version; those of every runtime for one that the service did not have, and without
    one."""
    numbers = _NUMERIC.fullmatch(runtime_version)
    major, minor = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if major == 1 and minor < 15:
        return ("2.7", "3.5") if minor >= 4 else ("2.7",)
    if major == 1:
        return ("2.7", "3.7")
    if major == 2 and minor <= 11:
        return ("3.7",)
    return (*_OF_SERVICE, *_OF_RUNTIMES)


def problem_of(python_version: str, runtime_version: str) -> str:
    """The sentence about a version that a job may not name; "" for any other."""
    versions = allowed(runtime_version)
    if not python_version or python_version in versions:
        return ""
    *others, last = versions
    choice = f"{', '.join(others)} or {last}" if others else last
    beside = f" with the runtime version {runtime_version}" if runtime_version else ""
    return f"must be {choice}{beside}; this is {quoted(python_version)}."
