"""Allow-list of engine options: what the operator lets jobs ask of Slurm and Kubernetes. By default nothing. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints
from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import Violation, quoted
from trainyard_protocol.job.config.yaml_file import SiteEntry
from trainyard_protocol.job.keys.engine_options import (
    QUALIFIED_NAME,
    RESOURCE_NAME,
    EngineOptions,
    KubernetesOptions,
    SlurmOptions,
)

ANY = "*"
"""The entry that allows every value, and the project that stands for all."""


def _values(value: object) -> object:
    if value == ANY:
        return [ANY]
    if not isinstance(value, list):
        raise ValueError('must be a list of the allowed values, or "*" for any')  # noqa: TRY004 - pydantic's
    return [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in value]


def _not_any(value: list[str]) -> list[str]:
    if ANY in value:
        raise ValueError('must list what is allowed by name: each gives rights in the cluster, so there is no "*"')
    return value


_Allowed = Annotated[list[str], BeforeValidator(_values)]
_Listed = Annotated[_Allowed, AfterValidator(_not_any)]
_Key = Annotated[str, StringConstraints(pattern=f"^{QUALIFIED_NAME}$")]
_Resource = Annotated[str, StringConstraints(pattern=f"^{RESOURCE_NAME}$")]


class SlurmAllowance(SiteEntry):
    """Allowed values of each option of Slurm; of `setup` whole lines."""

    account: _Allowed = Field(default_factory=list)
    qos: _Allowed = Field(default_factory=list)
    constraint: _Allowed = Field(default_factory=list)
    reservation: _Allowed = Field(default_factory=list)
    exclusive: bool = False
    setup: _Allowed = Field(default_factory=list)


class KubernetesAllowance(SiteEntry):
    """Allowed values of each option of pods: of mappings by key, of `queue` by project, "*": of every project."""

    labels: dict[_Key, _Allowed] = Field(default_factory=dict)
    annotations: dict[_Key, _Allowed] = Field(default_factory=dict)
    node_selector: dict[_Key, _Allowed] = Field(default_factory=dict)
    service_account: _Listed = Field(default_factory=list)
    resources: dict[_Resource, _Allowed] = Field(default_factory=dict)
    capabilities: _Listed = Field(default_factory=list)
    queue: dict[str, _Allowed] = Field(default_factory=dict)


class EngineAllowance(SiteEntry):
    slurm: SlurmAllowance = SlurmAllowance()
    kubernetes: KubernetesAllowance = KubernetesAllowance()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A value that a job asks for. `path` is the option's proto path, `entry` that of the operator's file, `key` is set
    for an option that is a mapping."""

    path: str
    entry: str
    value: str
    allowed: Collection[str]
    key: str = ""


def violations(options: EngineOptions, allowance: EngineAllowance, project: str, file: str) -> Iterator[Violation]:
    """Violations by what a job of the project asks for and may not. `file` is the operator's, "" without one."""
    asked = [*_of_slurm(options.slurm, allowance.slurm)]
    asked += _of_kubernetes(options.kubernetes, allowance.kubernetes, project)
    for item in asked:
        if ANY in item.allowed or item.value in item.allowed:
            continue
        what = f"{item.key}: {quoted(item.value)}" if item.key else quoted(item.value)
        yield Violation(f"engine_options.{item.path}", f"{what} is not allowed here; {_rule(item, file)}")


def _rule(item: _Asked, file: str) -> str:
    if not file:
        return "nothing is: the operator allows values in a file of --machine-types, and this server has none."
    allowed = f"allowed: {', '.join(item.allowed)}" if item.allowed else "nothing is allowed"
    return f"{allowed} (engineOptions.{item.entry} in {file}, the server's file of --machine-types)."


def _of_slurm(options: SlurmOptions, allowance: SlurmAllowance) -> Iterator[_Asked]:
    for name in ("account", "qos", "constraint", "reservation"):
        if value := getattr(options, name):
            yield _Asked(f"slurm.{name}", f"slurm.{name}", value, getattr(allowance, name))
    if options.exclusive:
        yield _Asked("slurm.exclusive", "slurm.exclusive", "true", ["true"] if allowance.exclusive else [])
    for number, line in enumerate(options.setup):
        yield _Asked(f"slurm.setup[{number}]", "slurm.setup", line, allowance.setup)


def _of_kubernetes(options: KubernetesOptions, allowance: KubernetesAllowance, project: str) -> Iterator[_Asked]:
    for name in ("labels", "annotations", "node_selector", "resources"):
        by_key = getattr(allowance, name)
        for key, value in getattr(options, name).items():
            entry = f"kubernetes.{to_camel(name)}"
            yield _Asked(f"kubernetes.{name}", entry, str(value), by_key.get(key, []), key)
    if account := options.service_account:
        yield _Asked("kubernetes.service_account", "kubernetes.serviceAccount", account, allowance.service_account)
    for number, capability in enumerate(options.capabilities):
        path = f"kubernetes.capabilities[{number}]"
        yield _Asked(path, "kubernetes.capabilities", capability, allowance.capabilities)
    if queue := options.queue:
        allowed = [*allowance.queue.get(project, []), *allowance.queue.get(ANY, [])]
        yield _Asked("kubernetes.queue", f"kubernetes.queue.{project}", queue, allowed)
