"""Command line options of the agent, and their validation."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from trainyard_agent.control.start_deadline import START_DEADLINE_S
from trainyard_agent.engines.docker.network.network_policy import POLICIES, Endpoint
from trainyard_agent.engines.docker.runtime import PIDS_LIMIT
from trainyard_agent.engines.docker.users import Choice
from trainyard_agent.engines.kubernetes.capacity.capacity import parse_pool
from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import JobDirClaim
from trainyard_agent.host import job_users
from trainyard_agent.host.tpus import parse_tpus
from trainyard_agent.monitoring.usage_reporter import USAGE_S
from trainyard_agent.platforms import PLATFORMS
from trainyard_agent.runtimes.installing import InstallLimits
from trainyard_protocol.job.resources import Gpu, Pool
from trainyard_protocol.net.trust import CA_FILE_VARIABLE

STOP_ALL_GRACE_S = 10.0
IN_FLIGHT = 20
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NO_ID = 2**32 - 1  # -1, the kernel's word for none

_INSTALL = InstallLimits()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. Exits with status 2, as argparse does, for invalid ones."""
    parser = argparse.ArgumentParser(
        prog="python -m trainyard_agent",
        description="Runs the replicas that a Trainyard server assigns to this machine.",
    )
    parser.add_argument("--server", metavar="URL", help="the server's address, such as http://127.0.0.1:8470")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with the agent's token")
    parser.add_argument(
        "--ca-file",
        type=Path,
        default=os.environ.get(CA_FILE_VARIABLE) or None,
        metavar="FILE",
        help=f"the CA certificates (PEM) for an https:// server; default: ${CA_FILE_VARIABLE}, else those of the "
        "operating system",
    )
    parser.add_argument("--state-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--runtime",
        choices=list(PLATFORMS),
        default="auto",
        help="how replicas of new runs may run; auto (the default): jobs with an image in containers, while an engine "
        "answers, and package jobs as processes where they may (but see packageJobs and versions of --runtimes)",
    )
    parser.add_argument(
        "--one-user",
        action="store_true",
        help="all jobs are this user's own: package jobs may run as processes, with all rights of this user; without "
        "it processes need an agent that is root, and each run has a user id of its own",
    )
    parser.add_argument(
        "--job-uids",
        type=_user_ids,
        default=job_users.DEFAULT,
        metavar="FIRST-LAST",
        help="user ids for the processes of jobs, which nothing else on the machine has, nor another agent; "
        f"default: {job_users.DEFAULT[0]}-{job_users.DEFAULT[-1]}",
    )
    _add_container_options(parser)
    _add_install_options(parser)
    _add_slurm_options(parser)
    _add_cluster_options(parser)
    parser.add_argument(
        "--capacity",
        choices=["fit", "strict"],
        default="fit",
        help="fit (the default): scale a gang that is larger than the machine down to it; strict: keep it queued",
    )
    parser.add_argument("--cpus", default="", metavar="LIST", help="CPUs for replicas, such as 0,2-5")
    parser.add_argument("--memory-gb", type=_positive, metavar="N", help="memory for replicas, in 10^9 bytes")
    parser.add_argument(
        "--tpus",
        type=_tpus,
        default=(),
        metavar="COUNTxTYPE",
        help="the TPU of this machine, such as 8xTPU_V3: 8 cores, which one replica of type cloud_tpu has",
    )
    parser.add_argument(
        "--disk-gb",
        type=_gigabytes,
        default=_INSTALL.disk_bytes / 1e9,
        metavar="N",
        help="disk space, in 10^9 bytes, of a replica beside its job-dir, and of the installation of a run's packages; "
        "0: no limit; default: %(default)g",
    )
    parser.add_argument(
        "--disk-reserve-gb",
        type=_gigabytes,
        default=0.25,
        metavar="N",
        help="start no run while the disk of --state-dir, of a --job-dir-root or of the container engine has less than "
        "N times 10^9 bytes left (of a small disk: a tenth of it), so that what runs can go on; default: %(default)g",
    )
    parser.add_argument(
        "--replica-env",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set this in every replica's environment, without VALUE as in the agent's own; may be repeated",
    )
    parser.add_argument("--name", default="", help="the agent's display name; default: the host name")
    parser.add_argument(
        "--python",
        type=_program,
        default=sys.executable,
        metavar="PROGRAM",
        help="the interpreter whose packages every job can import; default: the one that runs the agent",
    )
    parser.add_argument(
        "--start-deadline",
        type=_positive,
        metavar="SECONDS",
        help="give a run back when its engine has given no new reason for so long why it has not started it; default: "
        f"{START_DEADLINE_S:g}, and never with --runtime slurm, whose queue is long",
    )
    parser.add_argument(
        "--usage-every",
        type=_seconds,
        default=USAGE_S,
        metavar="SECONDS",
        help="interval between measurements of CPU, memory and GPU usage, 0 for none; default: %(default)g",
    )
    parser.add_argument(
        "--stop-all",
        action="store_true",
        help="stop every replica under the state directory, and exit",
    )
    parser.add_argument(
        "--doctor",
        action="store_true",
        help="print the orphaned processes, containers and directories on this machine as JSON, and exit",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="check the options, the server's address and certificate, the token and the versions, and exit",
    )
    parser.add_argument("--fix", action="store_true", help="--doctor: remove the orphans")
    parser.add_argument(
        "--live-runs",
        type=_words,
        metavar="RUN,...",
        help="--doctor: the runs that have not ended on the server; without it environments are not checked",
    )
    parser.add_argument(
        "--grace",
        type=_positive,
        default=STOP_ALL_GRACE_S,
        metavar="SECONDS",
        help="--stop-all: time between SIGTERM and SIGKILL; default: %(default)s",
    )
    options = parser.parse_args(argv)
    if not (options.stop_all or options.doctor) and not (options.server and options.token_file):
        parser.error("--server and --token-file are required, except with --stop-all and --doctor")
    if options.runtime == "slurm":
        if options.shared_dir is None:
            parser.error("--runtime slurm needs --shared-dir, a directory that the nodes of Slurm have too")
        if not (options.one_user or options.stop_all or options.doctor):
            parser.error(
                "--runtime slurm runs all jobs with the rights of this user: add --one-user if they are its own"
            )
        options.shared_dir = options.shared_dir.absolute()
    if (options.in_flight or options.queue_class) and not options.local_queue:
        parser.error("--in-flight and --queue-class belong to a queue of Kueue: name it with --local-queue")
    options.in_flight = options.in_flight or IN_FLIGHT
    if options.start_deadline is None:
        options.start_deadline = float("inf") if options.runtime == "slurm" else START_DEADLINE_S
    options.state_dir = options.state_dir.absolute()
    options.network = options.network or ("all" if options.one_user else "egress")
    return options


def _add_container_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "containers", "The engine is the one in DOCKER_HOST, or this machine's."
    )
    group.add_argument(
        "--pull",
        choices=["missing", "always", "never"],
        default="missing",
        help="when to pull a job's image; default: when it is missing",
    )
    group.add_argument(
        "--runtimes",
        type=Path,
        metavar="FILE",
        help="images for runtime versions, added to the shipped table",
    )
    group.add_argument(
        "--job-dir-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="job-dirs below this directory may be mounted into containers; may be repeated",
    )
    group.add_argument(
        "--container-user",
        type=_container_user,
        default="auto",
        metavar="image|UID[:GID]",
        help="whom containers run as: image: the image's own user, root too; UID:GID: these ids; default: with "
        "--one-user this user in place of root, else an unprivileged user in place of any, for each owner of jobs",
    )
    group.add_argument(
        "--network",
        choices=POLICIES,
        help="what containers reach: all: the outside and what this machine serves at its addresses (the default with "
        "--one-user); egress: the outside only (the default without); none: replicas of the same run only. What "
        "--replica-env names by URL, they reach always",
    )
    group.add_argument(
        "--allow-address",
        type=_endpoint,
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="let containers reach this TCP and UDP port under every --network; may be repeated",
    )
    group.add_argument(
        "--pids-limit",
        type=_count,
        default=PIDS_LIMIT,
        metavar="N",
        help="limit of processes and threads for each replica, in a container or with a user of its own; "
        "default: %(default)s",
    )


def _add_slurm_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Slurm", "Options of --runtime slurm, for an agent on a login node.")
    group.add_argument(
        "--shared-dir",
        type=Path,
        metavar="DIR",
        help="directory for runs and environments, on a file system that the nodes have at the same path",
    )
    group.add_argument(
        "--slurm-partition", default="", metavar="NAME", help="partition of the jobs; default: the site's"
    )
    group.add_argument(
        "--slurm-account", default="", metavar="NAME", help="account of the jobs; default: this user's"
    )


def _add_install_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "installing packages", "Limits of the installation of one run's packages, which runs their setup.py."
    )
    group.add_argument(
        "--install-timeout",
        type=_positive,
        default=_INSTALL.seconds,
        metavar="SECONDS",
        help="default: %(default)g",
    )
    group.add_argument(
        "--install-memory-gb",
        type=_positive,
        default=_INSTALL.memory_bytes / 1e9,
        metavar="N",
        help="memory, in 10^9 bytes; default: %(default)g",
    )
    group.add_argument(
        "--install-cpus",
        type=_positive,
        default=_INSTALL.cpus,
        metavar="N",
        help="CPUs, in containers; default: %(default)g",
    )


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Kubernetes", "Options of --runtime kubernetes.")
    group.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="how to reach the cluster; default: the service account of the pod that the agent runs in",
    )
    group.add_argument(
        "--context", default="", metavar="NAME", help="a context of the kubeconfig; default: its current one"
    )
    group.add_argument(
        "--namespace",
        default="",
        metavar="NAME",
        help="the namespace of the pods, which should have nothing else in it; default: that of the context, or of "
        "the agent's pod",
    )
    group.add_argument(
        "--pool",
        type=_pool,
        action="append",
        default=[],
        metavar="NODESxVCPUxGB[+COUNTxTYPE]",
        help="nodes for replicas, such as 4x16x64+2xNVIDIA_TESLA_T4: 4 nodes with 16 vCPU, 64 GB and 2 accelerators "
        "each; may be repeated; default: the room on the cluster's nodes, if the agent may list them, else in a "
        "ResourceQuota of the namespace",
    )
    group.add_argument(
        "--init-image",
        default="",
        metavar="IMAGE",
        help="an image with python3 that the nodes can pull: in it the pods of a gang wait until all have their names, "
        "before any program starts; default: that of the agent's own pod, if it runs in one",
    )
    group.add_argument(
        "--local-queue",
        type=_object_name,
        metavar="NAME",
        help="Kueue decides what starts: the pods of each run are a group in this LocalQueue of the namespace; "
        "default: the server decides",
    )
    group.add_argument(
        "--in-flight",
        type=_count,
        metavar="N",
        help="with --local-queue: runs that wait in Kueue's queue, at most; the others wait in the server's; default: "
        f"{IN_FLIGHT}",
    )
    group.add_argument(
        "--queue-class",
        type=_queue_class,
        action="append",
        default=[],
        metavar="PRIORITY=CLASS",
        help="with --local-queue: the WorkloadPriorityClass of jobs from this priority on; may be repeated; default: "
        "the priority of their pods",
    )
    group.add_argument(
        "--server-url-for-pods",
        type=_url,
        metavar="URL",
        help="the server's address as pods reach it, from where they download packages that are too large for a "
        "ConfigMap; default: that of --server",
    )
    group.add_argument(
        "--job-dir-claim",
        type=_job_dir_claim,
        action="append",
        default=[],
        metavar="CLAIM=DIR",
        help="job-dirs below this directory, such as /mnt/jobs, are in a volume of the namespace, named by its "
        "PersistentVolumeClaim; may be repeated",
    )


def _pool(text: str) -> Pool:
    try:
        return parse_pool(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _object_name(text: str) -> str:
    if not _OBJECT_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be the name of an object in the cluster; this is {text!r}")
    return text


def _queue_class(text: str) -> tuple[int, str]:
    priority, equals, name = text.partition("=")
    if not equals or not re.fullmatch(r"\d{1,4}", priority):
        raise argparse.ArgumentTypeError(f"must look like 100=high-priority; this is {text!r}")
    return int(priority), _object_name(name)


def _job_dir_claim(text: str) -> JobDirClaim:
    try:
        return JobDirClaim.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme in ("http", "https") and parts.hostname and not parts.query:
        return text
    raise argparse.ArgumentTypeError(f"must look like https://trains.example.com:8470; this is {text!r}")


def _gigabytes(text: str) -> float:
    return 0.0 if text == "0" else _positive(text)


def _endpoint(text: str) -> Endpoint:
    try:
        return Endpoint.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in text.split(",") if word)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0; this is {text!r}")
    return int(text)


def _container_user(text: str) -> Choice:
    if text in ("auto", "image"):
        return "auto" if text == "auto" else "image"
    words = text.split(":")
    if len(words) <= 2 and all(word.isdecimal() and int(word) < _NO_ID for word in words) and int(words[0]):
        return int(words[0]), int(words[-1])
    raise argparse.ArgumentTypeError(
        f"must be auto, image, or ids such as 1000:1000, not root's; this is {text!r}"
    )


def _user_ids(text: str) -> range:
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal() and job_users.LEAST <= int(first) <= int(last) < 2**32 - 1:
        return range(int(first), int(last) + 1)
    raise argparse.ArgumentTypeError(
        f"must look like 61184-65519, from {job_users.LEAST} on; this is {text!r}"
    )


def _tpus(text: str) -> tuple[Gpu, ...]:
    try:
        return parse_tpus(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0; this is {text!r}")
    return number


def _seconds(text: str) -> float:
    return 0.0 if text == "0" else _positive(text)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must look like NAME=VALUE or NAME; this is {text!r}")
    if name.startswith("TRAINYARD_"):
        raise argparse.ArgumentTypeError(f"{name}: names that start with TRAINYARD_ are reserved")
    if not equals and name not in os.environ:
        raise argparse.ArgumentTypeError(f"{name}: the agent's own environment has no such variable")
    return name, value if equals else os.environ[name]


def _program(text: str) -> str:
    program = shutil.which(text)
    if program is None:
        raise argparse.ArgumentTypeError(f"there is no program {text!r} on this machine")
    return str(Path(program).absolute())
