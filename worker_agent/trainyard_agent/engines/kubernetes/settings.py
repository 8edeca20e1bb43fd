"""Settings of the agent of a Kubernetes namespace."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainyard_agent.engines.kubernetes.capacity.capacity import parse_pool
from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import JobDirClaim
from trainyard_agent.settings import EngineSettings, checked, count, url
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.resources import Pool
from trainyard_protocol.settings import setting

IN_FLIGHT = 20
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _object_name(text: str) -> str:
    if not _OBJECT_NAME.fullmatch(text):
        raise InvalidArgument(f"must be the name of an object in the cluster; this is {text!r}.")
    return text


def _queue_class(text: str) -> tuple[int, str]:
    priority, equals, name = text.partition("=")
    if not equals or not re.fullmatch(r"\d{1,4}", priority):
        raise InvalidArgument(f"must look like 100=high-priority; this is {text!r}.")
    return int(priority), _object_name(name)


@dataclass(frozen=True)
class KubernetesSettings(EngineSettings):
    title: ClassVar[str] = "Kubernetes\nOptions of --runtime kubernetes."
    spans_hosts: ClassVar[bool] = True
    has_pods: ClassVar[bool] = True

    kubeconfig: Path | None = setting(
        None,
        "how to reach the cluster",
        metavar="FILE",
        default_text="the service account of the pod that the agent runs in",
    )
    context: str = setting("", "a context of the kubeconfig", metavar="NAME", default_text="its current one")
    namespace: str = setting(
        "",
        "the namespace of the pods, which should have nothing else in it",
        metavar="NAME",
        default_text="that of the context, or of the agent's pod",
    )
    pool: tuple[Pool, ...] = setting(
        (),
        "nodes for replicas, such as 4x16x64+2xNVIDIA_TESLA_T4: 4 nodes with 16 vCPU, 64 GB and 2 accelerators each",
        metavar="NODESxVCPUxGB[+COUNTxTYPE]",
        read=checked(parse_pool),
        default_text="the room on the cluster's nodes, if the agent may list them, else in a ResourceQuota of the "
        "namespace",
    )
    init_image: str = setting(
        "",
        "an image with python3 that the nodes can pull: in it the pods of a gang wait until all have their names, "
        "before any program starts",
        metavar="IMAGE",
        default_text="that of the agent's own pod, if it runs in one",
    )
    local_queue: str = setting(
        "",
        "Kueue decides what starts: the pods of each run are a group in this LocalQueue of the namespace",
        metavar="NAME",
        read=_object_name,
        default_text="the server decides",
    )
    in_flight: int | None = setting(
        None,
        "with --local-queue: runs that wait in Kueue's queue, at most; the others wait in the server's",
        metavar="N",
        read=count,
        default_text=str(IN_FLIGHT),
    )
    queue_class: tuple[tuple[int, str], ...] = setting(
        (),
        "with --local-queue: the WorkloadPriorityClass of jobs from this priority on",
        metavar="PRIORITY=CLASS",
        read=_queue_class,
        default_text="the priority of their pods",
    )
    server_url_for_pods: str = setting(
        "",
        "the server's address as pods reach it, from where they download packages that are too large for a ConfigMap",
        metavar="URL",
        read=url,
        default_text="that of --server",
    )
    job_dir_claim: tuple[JobDirClaim, ...] = setting(
        (),
        "job-dirs below this directory, such as /mnt/jobs, are in a volume of the namespace, named by its "
        "PersistentVolumeClaim",
        metavar="CLAIM=DIR",
        read=checked(JobDirClaim.parse),
    )

    def problem(self, serves: bool, one_user: bool) -> str:  # noqa: ARG002 - for every command
        if (self.in_flight or self.queue_class) and not self.local_queue:
            return "--in-flight and --queue-class belong to a queue of Kueue: name it with --local-queue"
        return ""


SETTINGS = KubernetesSettings
