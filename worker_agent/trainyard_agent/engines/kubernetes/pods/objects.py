"""Translation of a run into Kubernetes objects. Pure; objects are dicts, as the API has them.

A run is a ConfigMap, its root, which holds the order and what must be remembered; a headless Service, which gives the
pods their names; a Secret, if its job has secrets; and one bare Pod for each replica. The root owns all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from trainyard_agent.control.keeping import kept
from trainyard_agent.engines.kubernetes.pods.job_options import with_options
from trainyard_agent.runtimes import replica_names
from trainyard_agent.runtimes.base import Launch
from trainyard_agent.runtimes.installing import PACKAGES
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.mounts import CACHE
from trainyard_protocol.job.pod_settings import PodToleration
from trainyard_protocol.wire.sync import RunOrder

CONTAINER = "main"

DOMAIN = "trainyard.dev/"
AGENT, RUN, TASK, JOB, ATTEMPT = (DOMAIN + name for name in ("agent", "run", "task", "job", "attempt"))
"""Labels; JOB is an annotation, which may be longer."""

ORDER, EXIT = "order", "exit."
"""Keys of the root: of the order, and before the exit of each task. Annotations have a quarter of the room."""

LAUNCHED, MADE, STOP = (DOMAIN + name for name in ("launched", "made", "stop"))
"""Annotations of the root: that pods are made from now on, that all were, why and which tasks were stopped."""

FINALIZER = DOMAIN + "observed"
"""Keeps a pod, whoever deletes it, until its end was read."""

_IN_ENVIRONMENT = (
    "/bin/sh",
    "-c",
    f'export PATH="{PACKAGES}/bin:$PATH" VIRTUAL_ENV={PACKAGES}; exec "$@"',  # PATH is the image's
    "sh",
)


@dataclass(frozen=True, slots=True)
class PodParts:
    """Parts of a pod that belong together: annotations; containers that run before its program, one after the other;
    volumes; and where the program has them."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    init_containers: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()

    @classmethod
    def together(cls, *several: "PodParts") -> "PodParts":
        return cls(
            {name: value for parts in several for name, value in parts.annotations.items()},
            tuple(container for parts in several for container in parts.init_containers),
            tuple(volume for parts in several for volume in parts.volumes),
            tuple(mount for parts in several for mount in parts.mounts),
        )


@dataclass(frozen=True, slots=True)
class PodOwner:
    """The agent that the objects belong to."""

    agent_id: str

    @property
    def selector(self) -> str:
        return f"{AGENT}={self.agent_id}"

    def selector_of(self, run_id: str) -> str:
        return f"{self.selector},{RUN}={run_id}"

    def labels(self, order: RunOrder) -> dict[str, str]:
        return {
            AGENT: self.agent_id,
            RUN: order.run_id,
            ATTEMPT: str(order.number),
            "app.kubernetes.io/managed-by": "trainyard",
        }


def run_name(run_id: str) -> str:
    """The name of a run's root, Service and Secret."""
    return f"ty-{run_id[:12].lower()}"


def pod_name(run_id: str, task: str) -> str:
    return f"{run_name(run_id)}-{task}"


def addresses(order: RunOrder) -> dict[str, str]:
    """`host:port` by task, before there is a pod: names of the run's Service."""
    return replica_names.addresses(order, f".{run_name(order.run_id)}")


def literal(text: str) -> str:
    """The text where Kubernetes replaces `$(NAME)` and `$$`: in commands, arguments and variables."""
    return text.replace("$", "$$")


def root(owner: PodOwner, order: RunOrder) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": run_name(order.run_id),
            "labels": owner.labels(order),
            "annotations": {JOB: f"{order.project}/{order.job_id}"},
        },
        "data": {ORDER: order.model_dump_json()},
    }


def service(owner: PodOwner, order: RunOrder, uid: str) -> dict[str, Any]:
    """Names are published at once: programs look for each other before any is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned(owner, order, uid, run_name(order.run_id)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {AGENT: owner.agent_id, RUN: order.run_id},
        },
    }


def secret(owner: PodOwner, order: RunOrder, uid: str, launch: Launch) -> dict[str, Any]:
    """The secrets of a job, which all its replicas have alike."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owned(owner, order, uid, run_name(order.run_id)),
        "immutable": True,
        "stringData": {**_variables(launch), **{file_key(n): f.value for n, f in enumerate(launch.secret_files)}},
    }


def pod(owner: PodOwner, order: RunOrder, launch: Launch, uid: str, *further: PodParts) -> dict[str, Any]:
    """One replica. `restartPolicy` Never: a run never starts over. A process namespace for the whole pod: a program
    that is process 1 would ignore SIGTERM."""
    name = pod_name(order.run_id, launch.task)
    own = (_SHARED_MEMORY, _secret_files(order, launch), _job_dir(launch), _mounts(launch))
    parts = PodParts.together(*own, *further)
    metadata = owned(owner, order, uid, name)
    metadata["labels"][TASK] = launch.task
    metadata["annotations"] |= parts.annotations
    plain = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "finalizers": [FINALIZER]},
        "spec": {
            "restartPolicy": "Never",
            "hostname": replica_names.host_name(order.run_id, Task.parse(launch.task)),
            "subdomain": run_name(order.run_id),
            "shareProcessNamespace": True,
            "terminationGracePeriodSeconds": whole_seconds(order.grace_s),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, **_user(launch)},
            **_settings(launch),
            **({"initContainers": list(parts.init_containers)} if parts.init_containers else {}),
            "containers": [_container(order, launch, parts)],
            "volumes": list(parts.volumes),
        },
    }
    return with_options(plain, order.training_input.engine_options.kubernetes)


def whole_seconds(grace_s: float) -> int:
    """A grace period of the API. 0 would remove a pod whose program may still run."""
    return max(1, ceil(grace_s))


def secret_values(stored: Mapping[str, Any]) -> Sequence[str]:
    """The encoded values of a Secret."""
    return list((stored.get("data") or {}).values())


def init_container_state(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The state of an init container; empty before it has one."""
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return next((status.get("state") or {} for status in statuses if status["name"] == name), {})


def owned(owner: PodOwner, order: RunOrder, uid: str, name: str) -> dict[str, Any]:
    """Metadata of an object that the run's root, with this uid, owns."""
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": run_name(order.run_id), "uid": uid}
    return {
        "name": name,
        "labels": owner.labels(order),
        "annotations": {JOB: f"{order.project}/{order.job_id}"},
        "ownerReferences": [reference],
    }


def _container(order: RunOrder, launch: Launch, parts: PodParts) -> dict[str, Any]:
    limits = amounts(launch)
    entrypoint, command = launch.entrypoint, launch.command
    if launch.packages:
        command = in_environment(command)
    if launch.keep is not None:
        entrypoint, command = (), kept((*entrypoint, *command), launch.keep, launch.task, alone=True)
        entrypoint, command = command[:1], command[1:]
    return {
        "name": CONTAINER,
        "image": launch.image,
        **({"command": [literal(word) for word in entrypoint]} if entrypoint else {}),
        **({"args": [literal(word) for word in command]} if command else {}),
        "env": _environment(order, launch),
        "resources": {"limits": limits, "requests": limits},
        "securityContext": container_security(launch),
        "volumeMounts": list(parts.mounts),
    }


def in_environment(command: Sequence[str]) -> tuple[str, ...]:
    """The command in the environment of the run's packages."""
    return (*_IN_ENVIRONMENT, *command)


def container_security(launch: Launch) -> dict[str, Any]:
    """No privileges but those of a plain root; none at all for a user that the site has chosen, as Pod Security's
    `restricted` asks for."""
    capabilities: dict[str, list[str]] = {"drop": ["ALL"]}
    if launch.pod.run_as_user is None:
        capabilities["add"] = list(replica_names.CAPABILITIES)
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


def _user(launch: Launch) -> dict[str, Any]:
    user = launch.pod.run_as_user
    return {} if user is None else {"runAsUser": user, "runAsGroup": user, "runAsNonRoot": True}


def _settings(launch: Launch) -> dict[str, Any]:
    """The site's choices of where and how the pod runs. A pod with accelerators tolerates the taint by which clusters
    keep others off their nodes, named as the resource."""
    settings = launch.pod
    tolerations = [_toleration(toleration) for toleration in settings.tolerations]
    if launch.accelerator_count:
        tolerations.append({"key": settings.accelerator_resource, "operator": "Exists"})
    secrets = [{"name": name} for name in settings.image_pull_secrets]
    fields: dict[str, Any] = {
        "nodeSelector": dict(settings.node_selector),
        "tolerations": tolerations,
        "priorityClassName": settings.priority_class,
        "imagePullSecrets": secrets,
        "runtimeClassName": settings.runtime_class,
    }
    return {name: value for name, value in fields.items() if value}


def _toleration(toleration: PodToleration) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
        "tolerationSeconds": toleration.toleration_seconds,
    }
    return {name: value for name, value in fields.items() if value not in ("", None)}


def _environment(order: RunOrder, launch: Launch) -> list[dict[str, Any]]:
    plain = {
        "PYTHONUNBUFFERED": "1",  # so that a line is in the log when it is printed
        **{name: value for mount in launch.mounts for name, value in mount.variables_at(mount.path).items()},
        **launch.environment,
        **{file.variable: file.path for file in launch.secret_files},
    }
    references = secret_variables(order, launch)
    return [
        *({"name": name, "value": literal(value)} for name, value in plain.items() if name not in references),
        *({"name": name, "valueFrom": source} for name, source in references.items()),
    ]


def secret_variables(order: RunOrder, launch: Launch) -> dict[str, Any]:
    """The sources of the job's secret variables by name."""
    return {
        variable: {"secretKeyRef": {"name": run_name(order.run_id), "key": key}}
        for key, variable in zip(_variables(launch), launch.secrets, strict=True)
    }


def _variables(launch: Launch) -> dict[str, str]:
    """The values of variables by their keys in the Secret; a variable's name may be no key."""
    return {f"variable-{number}": value for number, value in enumerate(launch.secrets.values())}


def file_key(number: int) -> str:
    """The key of a file in a Secret or a ConfigMap, as a file name may be none."""
    return f"file-{number}"


_SHARED_MEMORY = PodParts(
    volumes=({"name": "shm", "emptyDir": {"medium": "Memory"}},),
    mounts=({"name": "shm", "mountPath": "/dev/shm"},),  # noqa: S108 - in the pod
)
"""What data loaders and NCCL use; it counts as the replica's memory. A container has 64 MB else."""


def _secret_files(order: RunOrder, launch: Launch) -> PodParts:
    if not launch.secret_files:
        return PodParts()
    source = {"secretName": run_name(order.run_id), "defaultMode": 0o444}
    mounts = (
        {"name": "secrets", "mountPath": file.path, "subPath": file_key(number), "readOnly": True}
        for number, file in enumerate(launch.secret_files)
    )
    return PodParts(volumes=({"name": "secrets", "secret": source},), mounts=tuple(mounts))


def _job_dir(launch: Launch) -> PodParts:
    """The job-dir, and nothing else of the volume that it lies in."""
    if not launch.job_dir_source:
        return PodParts()
    claim, _, path = launch.job_dir_source.partition("/")
    return PodParts(
        volumes=({"name": "job-dir", "persistentVolumeClaim": {"claimName": claim}},),
        mounts=({"name": "job-dir", "mountPath": launch.job_dir, "subPath": path},),
    )


def _mounts(launch: Launch) -> PodParts:
    """The directories of the site. A claim is one volume of the pod, whatever is mounted of it."""
    volumes: dict[str, dict[str, Any]] = {}
    claims = {launch.job_dir_source.partition("/")[0]: "job-dir"} if launch.job_dir_source else {}
    mounts = []
    for number, mount in enumerate(launch.mounts):
        name = f"mount-{number}"
        place: dict[str, Any] = {"mountPath": mount.path, "readOnly": mount.read_only}
        if mount.source.startswith("/"):
            made = "DirectoryOrCreate" if mount.name == CACHE else "Directory"
            volumes[name] = {"hostPath": {"path": mount.source, "type": made}}
        else:
            claim, _, path = mount.source.partition("/")
            name = claims.setdefault(claim, name)
            if name == f"mount-{number}":
                volumes[name] = {"persistentVolumeClaim": {"claimName": claim}}
            place |= {"subPath": path} if path else {}
        mounts.append({"name": name, **place})
    return PodParts(volumes=tuple({"name": name, **volume} for name, volume in volumes.items()), mounts=tuple(mounts))


def amounts(launch: Launch) -> dict[str, str]:
    """Amounts of a replica, which are its limits and its requests: so no other pod takes them."""
    limits = {}
    if launch.memory_bytes:
        limits["memory"] = str(launch.memory_bytes)
    if launch.vcpus:
        limits["cpu"] = str(launch.vcpus)
    if launch.accelerator_count:
        limits[launch.pod.accelerator_resource] = str(launch.accelerator_count)
    return limits
