"""The site's partitions, and whether it has what the agent's settings name."""

import getpass
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainyard_agent.engines.slurm import commands, spec
from trainyard_agent.engines.slurm.commands import SlurmError
from trainyard_agent.engines.slurm.spec import SlurmDefaults

_ACCOUNT = re.compile("invalid account", re.IGNORECASE)
_QOS = re.compile("invalid qos", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Partition:
    """`limit_s` is the longest time limit of a job in it."""

    name: str
    is_default: bool
    limit_s: float


def parse_partitions(output: str) -> list[Partition]:
    """Parse `NAME|LIMIT` per line; the default partition has a `*`. Pure."""
    found: dict[str, Partition] = {}
    for line in output.splitlines():
        name, separator, limit = line.strip().partition("|")
        seconds = spec.duration_s(limit.strip())
        if separator:
            plain = name.removesuffix("*")
            found[plain] = Partition(plain, name.endswith("*"), math.inf if seconds is None else seconds)
    return list(found.values())


def partitions() -> list[Partition]:
    """All partitions that this user sees. Raises SlurmError."""
    return parse_partitions(commands.run(["sinfo", "--noheader", "--format=%P|%l"]))


def longest_s(several: Iterable[Partition], chosen: str) -> float:
    """The time limit of jobs in the chosen partitions ("": the default), of several the shortest. Pure."""
    names = chosen.split(",")
    limits = (item.limit_s for item in several if item.name in names or (item.is_default and not chosen))
    return min(limits, default=math.inf)


def problems(settings: SlurmDefaults) -> Iterator[str]:
    """Sentences about settings that name what the site does not have. Raises SlurmError."""
    there = partitions()
    missing = set(filter(None, settings.partition.split(","))) - {item.name for item in there}
    if missing:
        names = ", ".join(item.name + (" (the default)" if item.is_default else "") for item in there)
        lacks = f"Slurm has no partition {', '.join(sorted(missing))}"
        yield f"--slurm-partition {settings.partition}: {lacks}. There are: {names}."
        return
    if not settings.account and not settings.qos:
        return
    refusal = _refusal(settings)
    if settings.account and _ACCOUNT.search(refusal):
        yield f"--slurm-account {settings.account}: Slurm refuses it ({refusal}).{_known('account')}"
    elif settings.qos and _QOS.search(refusal):
        yield f"--slurm-qos {settings.qos}: Slurm refuses it ({refusal}).{_known('qos')}"


def _refusal(settings: SlurmDefaults) -> str:
    """Slurm's words about a job with these settings, which is not submitted; "" if it would take it. Whether Slurm
    checks accounts and QOS at all is the site's choice."""
    named = (("partition", settings.partition), ("account", settings.account), ("qos", settings.qos))
    try:
        commands.run(["sbatch", "--test-only", "--wrap=true", *(f"--{key}={value}" for key, value in named if value)])
    except SlurmError as error:
        return str(error.strerror)
    return ""


def _known(kind: str) -> str:
    """A sentence with those that the user has, where the site's accounting answers."""
    of_user = ("where", f"user={getpass.getuser()}")
    try:
        listed = commands.run(
            ["sacctmgr", "--noheader", "--parsable2", "show", "associations", *of_user, f"format={kind}"]
        )
    except (SlurmError, OSError, KeyError):
        return ""
    names = sorted({name for line in listed.splitlines() for name in line.strip().split(",") if name})
    return f" There are: {', '.join(names)}." if names else ""
