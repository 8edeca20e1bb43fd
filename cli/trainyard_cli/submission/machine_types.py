"""Machine types of jobs that name none: --cpus, and the default of this machine's own service. Pure."""

from collections.abc import Mapping
from typing import Any

from trainyard_cli.submission.flags import JobFlags
from trainyard_cli.submission.job_fields import get, put
from trainyard_protocol.errors import InvalidArgument

ONE_CPU = "Using 1 CPU (add --cpus N for more)."
"""What is said where `add_default` has added it."""

_TRAINING = "trainingInput"
_ROLES = ("worker", "parameterServer", "evaluator")
"""The roles beside the master."""


def add_cpus(data: dict[str, Any], origins: dict[str, str], flags: JobFlags) -> None:
    """Set the machine types that --cpus means: the master's, and those of the other roles without one, in place.

    Raises InvalidArgument beside a tier with machines of its own, and beside --master-machine-type.
    """
    cpus = flags.text("cpus")
    if not cpus:
        return
    tier = str(get(data, f"{_TRAINING}.scaleTier") or "CUSTOM").upper()
    if tier != "CUSTOM":
        where = "--scale-tier" if flags.text("scale_tier") else "the config's scaleTier"
        raise InvalidArgument(f"--cpus and {where} {tier}, which has machines of its own, exclude each other.")
    if flags.text("master_machine_type"):
        raise InvalidArgument("Only one of --cpus, --master-machine-type can be set.")
    put(data, f"{_TRAINING}.scaleTier", "CUSTOM")
    put(data, f"{_TRAINING}.masterType", f"local-{cpus}")
    origins["master_type"] = "--cpus"
    for role in _ROLES:
        if _is_counted(data, role) and not get(data, f"{_TRAINING}.{role}Type"):
            put(data, f"{_TRAINING}.{role}Type", f"local-{cpus}")


def add_default(data: dict[str, Any]) -> bool:
    """Give a job of packages that says nothing about machines one CPU, in place. True: it was added."""
    images = (get(data, f"{_TRAINING}.masterConfig"), get(data, f"{_TRAINING}.imageUri"))
    named = [get(data, f"{_TRAINING}.{name}") for name in ("scaleTier", "masterType", *_fields())]
    if not isinstance(get(data, _TRAINING), Mapping) or any(images) or any(named):
        return False
    put(data, f"{_TRAINING}.scaleTier", "CUSTOM")
    put(data, f"{_TRAINING}.masterType", "local-1")
    return True


def _fields() -> list[str]:
    return [f"{role}{field}" for role in _ROLES for field in ("Type", "Count", "Config")]


def _is_counted(data: Mapping[str, Any], role: str) -> bool:
    return str(get(data, f"{_TRAINING}.{role}Count") or "0") != "0"
