"""Settings of the agent of a Kubernetes namespace."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator

from trainyard_agent.engines.kubernetes.capacity.capacity import parse_pool
from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import JobDirClaim
from trainyard_agent.settings import Count, EngineSettings, Many, Url, setting
from trainyard_protocol.job.resources import Pool

IN_FLIGHT = 20
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _object_name(text: str) -> str:
    if not _OBJECT_NAME.fullmatch(text):
        raise ValueError(f"must be the name of an object in the cluster; this is {text!r}")
    return text


def _queue_class(value: object) -> tuple[int, str]:
    priority, equals, name = str(value).partition("=")
    if not equals or not re.fullmatch(r"\d{1,4}", priority):
        raise ValueError(f"must look like 100=high-priority; this is {value!r}")
    return int(priority), _object_name(name)


_claim: Callable[[str], JobDirClaim] = JobDirClaim.parse


class KubernetesSettings(EngineSettings):
    title: ClassVar[str] = "Kubernetes"
    about: ClassVar[str | None] = "Options of --runtime kubernetes."
    spans_hosts: ClassVar[bool] = True

    kubeconfig: Path | None = setting(
        None,
        "how to reach the cluster; default: the service account of the pod that the agent runs in",
        "FILE",
    )
    context: str = setting("", "a context of the kubeconfig; default: its current one", "NAME")
    namespace: str = setting(
        "",
        "the namespace of the pods, which should have nothing else in it; default: that of the context, or of the "
        "agent's pod",
        "NAME",
    )
    pool: Many[Annotated[Pool, BeforeValidator(parse_pool)]] = setting(
        (),
        "nodes for replicas, such as 4x16x64+2xNVIDIA_TESLA_T4: 4 nodes with 16 vCPU, 64 GB and 2 accelerators each; "
        "may be repeated; default: the room on the cluster's nodes, if the agent may list them, else in a "
        "ResourceQuota of the namespace",
        "NODESxVCPUxGB[+COUNTxTYPE]",
    )
    init_image: str = setting(
        "",
        "an image with python3 that the nodes can pull: in it the pods of a gang wait until all have their names, "
        "before any program starts; default: that of the agent's own pod, if it runs in one",
        "IMAGE",
    )
    local_queue: Annotated[str, AfterValidator(_object_name)] = setting(
        "",
        "Kueue decides what starts: the pods of each run are a group in this LocalQueue of the namespace; default: the "
        "server decides",
        "NAME",
    )
    in_flight: Count | None = setting(
        None,
        "with --local-queue: runs that wait in Kueue's queue, at most; the others wait in the server's; default: "
        f"{IN_FLIGHT}",
        "N",
    )
    queue_class: Many[Annotated[tuple[int, str], BeforeValidator(_queue_class)]] = setting(
        (),
        "with --local-queue: the WorkloadPriorityClass of jobs from this priority on; may be repeated; default: the "
        "priority of their pods",
        "PRIORITY=CLASS",
    )
    server_url_for_pods: Url | None = setting(
        None,
        "the server's address as pods reach it, from where they download packages that are too large for a ConfigMap; "
        "default: that of --server",
        "URL",
    )
    job_dir_claim: Many[Annotated[JobDirClaim, BeforeValidator(_claim)]] = setting(
        (),
        "job-dirs below this directory, such as /mnt/jobs, are in a volume of the namespace, named by its "
        "PersistentVolumeClaim; may be repeated",
        "CLAIM=DIR",
    )

    def problem(self, serves: bool, one_user: bool) -> str:  # noqa: ARG002 - for every command
        if (self.in_flight or self.queue_class) and not self.local_queue:
            return "--in-flight and --queue-class belong to a queue of Kueue: name it with --local-queue"
        return ""


SETTINGS = KubernetesSettings
