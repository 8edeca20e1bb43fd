"""Installation of a run's packages by a container: its place, its limits, and how its failures are told. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from trainyard_agent.installer.container import NO_ENVIRONMENT, NOT_FETCHED
from trainyard_agent.installer.output import AWAY, error_excerpt, events
from trainyard_agent.installer.patience import PATIENCE_S
from trainyard_agent.runtimes.masking import Mask
from trainyard_protocol.states import Reason

PACKAGES = "/opt/trainyard/environment"
"""The run's own environment, in every container."""

SOURCE = f"{PACKAGES}-source"
"""The directory that it is installed from, in the container that does it."""

_ACTIVITY = "installing "
_LONGEST_ACTIVITY = 200


@dataclass(frozen=True, slots=True)
class InstallLimits:
    """The limits of one installation; `disk_bytes` 0: none. `patience_s`: how long what is away is waited for."""

    seconds: float = 1800.0
    memory_bytes: int = 8 * 10**9
    cpus: float = 2.0
    disk_bytes: int = 100 * 10**9
    patience_s: float = PATIENCE_S


def activity(names: Iterable[str]) -> str:
    """Activity of a run meanwhile."""
    return _ACTIVITY + ", ".join(names)


def is_installing(text: str) -> bool:
    """Whether it is an `activity`."""
    return text.startswith(_ACTIVITY)


def failure(code: int, output: str) -> tuple[Reason, str]:
    """The reason and message of an installation whose script ended with this code."""
    if code == NO_ENVIRONMENT:
        message = f"No environment could be created in its runtime image:  {error_excerpt(output)}"
        return Reason.IMAGE_FAILED, message
    if code == AWAY:
        return Reason.GIVEN_BACK, error_excerpt(output)
    if code == NOT_FETCHED:
        return Reason.STAGING_FAILED, error_excerpt(output)
    return Reason.PACKAGES_FAILED, error_excerpt(output)


def notes(output: str) -> list[str]:
    """Sentences on what was installed, for the job's log."""
    return list(dict.fromkeys(_printable(str(event["note"])) for event in events(output) if "note" in event))


def last_activity(output: str, mask: Mask) -> str:
    """The present activity of the installer, without secrets; "" if it has not told one."""
    reported = [str(event["activity"]) for event in events(output) if "activity" in event]
    return mask.text(_printable(reported[-1]))[:_LONGEST_ACTIVITY] if reported else ""


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def too_slow(seconds: float) -> str:
    return f"Their installation took longer than {seconds:g} s, the agent's --install-timeout."


def too_large(limit_bytes: int) -> str:
    return f"Their installation used more than {limit_bytes / 1e9:g} GB of disk, the agent's --disk-gb."


def no_memory(limit_bytes: int, whose: str = "the agent's --install-memory-gb") -> str:
    return f"Their installation ran out of memory; its limit is {limit_bytes / 1e9:.3g} GB, {whose}."


def no_python(message: str) -> str:
    return f"Its runtime image has no python3: {message}"
