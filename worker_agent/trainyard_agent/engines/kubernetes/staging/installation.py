"""Installation of a run's packages in its pods: a ConfigMap with what it takes, and a container that runs before the
program, in the same image.

The container has no secrets of the job but those for the installation, and no privileges, and writes to a volume that
the program can only read. It asks for no more than the program, so that it takes no room of its own.
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainyard_agent.engines.kubernetes.pods.objects import (
    DOMAIN,
    PodOwner,
    PodParts,
    file_key,
    init_container_state,
    literal,
    owned,
    run_name,
    secret_variables,
)
from trainyard_agent.runtimes import installing
from trainyard_agent.runtimes.base import Launch
from trainyard_agent.runtimes.installing import PACKAGES, SOURCE, InstallLimits
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder

CONTAINER = "install"
INSTALLATION = f"{DOMAIN}installation"
"""Annotation of a pod: what is installed, and the limits."""

_FILE, _FILES = "installation.json", "files"
_ENVIRONMENT, _SOURCE = "environment", "packages"
_MADE = "made"
"""Directories of the volume: the environment, and the installer's temporary files, which count too."""
_TEMPORARY = "tmp"
_NO_PROGRAM = {"StartError", "ContainerCannotRun"}
_NOT_SEEN = {"ContainerStatusUnknown", "Unknown"}


class Installation(BaseModel):
    """Names of the packages, paths of the files that it takes, the variables of pip and uv, the names of the job's
    secret variables that it gets, and the command."""

    model_config = ConfigDict(frozen=True)

    names: tuple[str, ...]
    limits: InstallLimits
    files: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @classmethod
    def prepare(cls, directory: Path) -> Path:
        """The directory for the files."""
        files = directory / _FILES
        files.mkdir(mode=0o700)
        return files

    def write(self, directory: Path) -> None:
        (directory / _FILE).write_text(self.model_dump_json(), encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> tuple["Installation", list[bytes]]:
        """It, and the contents of its files."""
        installation = cls.model_validate_json((directory / _FILE).read_text(encoding="utf-8"))
        return installation, [(directory / _FILES / path).read_bytes() for path in installation.files]


def config_name(run_id: str) -> str:
    return f"{run_name(run_id)}-packages"


def config(owner: PodOwner, order: RunOrder, uid: str, contents: Sequence[bytes]) -> dict[str, Any]:
    """The ConfigMap with the files."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned(owner, order, uid, config_name(order.run_id)),
        "immutable": True,
        "binaryData": {file_key(number): base64.b64encode(content).decode() for number, content in enumerate(contents)},
    }


def parts(order: RunOrder, launch: Launch, installation: Installation) -> PodParts:
    limits = installation.limits
    source = {
        "name": config_name(order.run_id),
        "items": [{"key": file_key(number), "path": path} for number, path in enumerate(installation.files)],
    }
    room = {"sizeLimit": str(limits.disk_bytes)} if limits.disk_bytes else {}
    return PodParts(
        annotations={
            INSTALLATION: installation.model_dump_json(exclude={"files", "environment", "secrets", "command"})
        },
        init_containers=(_container(order, launch, installation),),
        volumes=({"name": _SOURCE, "configMap": source}, {"name": _ENVIRONMENT, "emptyDir": room}),
        mounts=({"name": _ENVIRONMENT, "mountPath": PACKAGES, "subPath": _MADE, "readOnly": True},),
    )


def _container(order: RunOrder, launch: Launch, installation: Installation) -> dict[str, Any]:
    limits, secrets = installation.limits, secret_variables(order, launch)
    memory = min(limits.memory_bytes, launch.memory_bytes or limits.memory_bytes)
    cpus = min(limits.cpus, launch.vcpus or limits.cpus)
    amounts = {"memory": str(memory), "cpu": f"{max(1, int(cpus * 1000))}m"}
    return {
        "name": CONTAINER,
        "image": launch.image,
        "command": list(installation.command),
        "env": [
            *({"name": name, "value": literal(value)} for name, value in installation.environment.items()),
            *({"name": name, "valueFrom": secrets[name]} for name in installation.secrets if name in secrets),
        ],
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": _SOURCE, "mountPath": SOURCE, "readOnly": True},
            {"name": _ENVIRONMENT, "mountPath": PACKAGES, "subPath": _MADE},
            {"name": _ENVIRONMENT, "mountPath": "/tmp", "subPath": _TEMPORARY},  # noqa: S108 - in the pod
        ],
    }


def activity(pod: Mapping[str, Any]) -> str:
    """Activity of the pod while packages are installed; "" before and afterwards."""
    installation = _of(pod)
    is_running = "running" in init_container_state(pod, CONTAINER)
    return installing.activity(installation.names) if installation is not None and is_running else ""


def failure(pod: Mapping[str, Any]) -> tuple[Reason, str] | None:
    """The reason and message of an installation that has failed, or exceeds a limit."""
    installation = _of(pod)
    if installation is None:
        return None
    limits, status = installation.limits, pod.get("status") or {}
    deleted = pod["metadata"].get("deletionTimestamp")
    if why := status.get("reason"):  # its node has ended it
        is_ours = why == "Evicted" and f'"{_ENVIRONMENT}"' in str(status.get("message"))
        return (Reason.PACKAGES_FAILED, installing.too_large(limits.disk_bytes)) if is_ours else None
    state = init_container_state(pod, CONTAINER)
    if "running" in state:
        since = datetime.fromisoformat(state["running"]["startedAt"])
        is_late = (datetime.now(UTC) - since).total_seconds() > limits.seconds
        return (Reason.PACKAGES_FAILED, installing.too_slow(limits.seconds)) if is_late else None
    ended = state.get("terminated")
    if ended is None or ended["exitCode"] == 0 or ended.get("reason") in _NOT_SEEN or deleted:
        return None
    output = str(ended.get("message") or "")
    if ended.get("reason") in _NO_PROGRAM:
        return Reason.IMAGE_FAILED, installing.no_python(output)
    if ended.get("reason") == "OOMKilled":
        (container,) = (init for init in pod["spec"]["initContainers"] if init["name"] == CONTAINER)
        given = int(container["resources"]["limits"]["memory"])
        whose = ("that of its replica",) if given < limits.memory_bytes else ()
        return Reason.PACKAGES_FAILED, installing.no_memory(given, *whose)
    return installing.failure(int(ended["exitCode"]), output)


def _of(pod: Mapping[str, Any]) -> Installation | None:
    text = (pod["metadata"].get("annotations") or {}).get(INSTALLATION)
    return None if text is None else Installation.model_validate_json(text)
