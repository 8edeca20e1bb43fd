"""The agent of a Kubernetes cluster: who it is, its capacity, its runtime, and what it offers.

Its identity is in a Secret of its namespace, so it needs no volume, and a coordination Lease lets one agent write.
"""

import argparse
import base64
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from trainyard_agent.engines.kubernetes import doctor as cluster
from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeError, KubeRefused
from trainyard_agent.engines.kubernetes.api.connection import (
    BadKubeconfig,
    KubeConnection,
    connect,
)
from trainyard_agent.engines.kubernetes.capacity import metrics
from trainyard_agent.engines.kubernetes.capacity.admission import NotAdmitted, choose
from trainyard_agent.engines.kubernetes.capacity.capacity_reader import (
    CapacityReader,
    read_capacity,
)
from trainyard_agent.engines.kubernetes.coordination import LEASE_S, CoordinationLease
from trainyard_agent.engines.kubernetes.pods.objects import PodOwner
from trainyard_agent.engines.kubernetes.runtime import KubernetesRuntime
from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import PodJobDirs
from trainyard_agent.engines.kubernetes.staging.pod_packages import (
    PodPackages,
    PodPackageSettings,
    no_images,
)
from trainyard_agent.engines.kubernetes.staging.pod_stager import PodStager
from trainyard_agent.host.clock import SystemClock
from trainyard_agent.host.identity import Identity, new_identity, saved_identity
from trainyard_agent.host.process_tags import StillAlive
from trainyard_agent.lease import lease_file
from trainyard_agent.runtime_selection import STAGING, OpenRuntimes, RuntimeRefused, install_limits
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.job.runtimes import load_runtimes
from trainyard_protocol.net.gcs import EMULATOR
from trainyard_protocol.states import Reason
from trainyard_protocol.views.health import Finding
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName, RuntimeOffer

NAME: RuntimeName = KubernetesRuntime.name

IDENTITY = "trainyard-agent-identity"
"""The Secret with the agent's id and key."""

_FORBIDDEN = 403
_PATIENCE_S, _KILL_TIMEOUT_S, _PAUSE_S = 10.0, 60.0, 0.5


def identity_of(options: argparse.Namespace) -> Identity:
    """The identity of the namespace's agent, made at first use: that of the state directory, if it has one from a time
    when identities were there alone. Raises RuntimeRefused, OSError."""
    own = saved_identity(options.state_dir)
    with closing(_client(options)) as client:
        try:
            found = client.get("secrets", IDENTITY) or client.create(
                "secrets", _secret(own or new_identity())
            )
        except KubeError as error:
            raise RuntimeRefused(f"--runtime kubernetes: {error.message}") from error
        shared = _identity(found)
        if own is not None and own != shared:
            raise RuntimeRefused(
                f"The namespace {client.namespace} is that of the agent {shared.agent_id}, and the state directory "
                f"{options.state_dir} of another one, {own.agent_id}. Each agent needs a namespace of its own; a new "
                "--state-dir makes this one the agent of the namespace."
            )
    return shared


def _secret(identity: Identity) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": IDENTITY},
        "immutable": True,
        "stringData": {"agent_id": identity.agent_id, "key": identity.key},
    }


def _identity(secret: Mapping[str, Any]) -> Identity:
    try:
        values = {name: base64.b64decode(secret["data"][name]).decode() for name in ("agent_id", "key")}
    except (KeyError, TypeError, ValueError) as error:
        raise RuntimeRefused(f"The Secret {IDENTITY} is not that of an agent: it has no {error}.") from error
    return Identity(values["agent_id"], values["key"])


def detect(options: argparse.Namespace) -> Capacity:
    """The capacity that `--pool` says, or that the cluster has now. Raises RuntimeRefused."""
    if options.pool:
        return Capacity.of_pools(*options.pool)
    with closing(_client(options)) as client:
        try:
            return read_capacity(client, beside_others=not options.local_queue)
        except KubeError as error:
            raise RuntimeRefused(f"--runtime kubernetes: {error.message}") from error


@contextmanager
def open_cluster(
    options: argparse.Namespace,
    agent_id: str,
    control_plane: ServerClient,
) -> Iterator[OpenRuntimes]:
    """Open the runtime for these options. Raises RuntimeRefused."""
    connection = _connection(options)
    with (
        closing(KubeClient(connection, options.namespace)) as leases,
        _lease(options, leases) as lease,
        closing(KubeClient(connection, options.namespace, lease.check)) as client,
    ):
        owner = PodOwner(agent_id)
        try:
            client.list("pods", owner.selector)
            lease.try_acquire()
            measures_usage = client.has_group(metrics.GROUP)
            admission = choose(client, options.local_queue or "", dict(options.queue_class))
            parts = (f"Kubernetes {client.version()}", f"namespace {client.namespace}", admission.about)
            about = ", ".join(filter(None, parts))
            init_image = options.init_image or _own_image(options, client)
        except KubeError as error:
            raise RuntimeRefused(f"--runtime kubernetes: {error.message}{_old_role(error)}") from error
        except NotAdmitted as error:
            raise RuntimeRefused(str(error)) from error
        environment = dict(options.replica_env)
        offers = [RuntimeOffer(name=NAME, replica_environment=environment, about=about)]
        table = load_runtimes(options.runtimes)
        if problem := no_images(table):
            offers.insert(0, RuntimeOffer(name="process", problem=problem, retiring=True))

        reader = CapacityReader(client, beside_others=not options.local_queue)
        if not options.pool:
            reader.start()

        def offered(info: AgentInfo) -> AgentInfo:
            return info.model_copy(
                update={
                    "capacity": reader.newest(info.capacity),
                    "runtime": offers[0].name,
                    "runtimes": tuple(offers),
                    "replica_environment": environment,
                    "runs_images": True,
                    "capacity_mode": "strict",
                    "in_flight": options.in_flight if options.local_queue else 0,
                }
            )

        runtime = KubernetesRuntime(options.state_dir, client, owner, admission, measures_usage, init_image)
        with closing(reader), closing(runtime):
            stager = PodStager(
                options.state_dir / STAGING,
                PodJobDirs(options.job_dir_claim, options.one_user),
                PodPackages(
                    control_plane,
                    PackageFetcher(control_plane, environment.get(EMULATOR, "")),
                    PodPackageSettings(
                        table,
                        options.server_url_for_pods or options.server,
                        options.ca_file,
                        install_limits(options),
                    ),
                ),
            )
            yield OpenRuntimes(runtime, stager, offered, lease)


def stop_all(options: argparse.Namespace) -> str:
    """Stop every run of the namespace's agent and wait for their ends, which the next agent reports. Returns how many
    pods, as a sentence. Raises RuntimeRefused beside an agent that runs, StillAlive."""
    connection = _connection(options)
    with (
        closing(KubeClient(connection, options.namespace)) as leases,
        _lease(options, leases) as lease,
        closing(KubeClient(connection, options.namespace, lease.check)) as client,
    ):
        try:
            agent_id = _known_id(options, client)
            if not agent_id:
                return f"There has been no agent in the namespace {client.namespace}."
            _acquire(lease, client.namespace)
            with closing(KubernetesRuntime(options.state_dir, client, PodOwner(agent_id))) as runtime:
                count = _stop_runs(runtime, options.grace)
        except KubeError as error:
            raise RuntimeRefused(f"--runtime kubernetes: {error.message}") from error
    return f"Stopped {count} pods in the namespace {client.namespace}."


def _acquire(lease: CoordinationLease, namespace: str) -> None:
    give_up_at = time.monotonic() + LEASE_S + _PATIENCE_S
    while holder := lease.try_acquire():
        if time.monotonic() > give_up_at:
            raise RuntimeRefused(
                f"The agent {holder} acts in the namespace {namespace}. End it first, as by "
                f"`kubectl -n {namespace} scale deployment trainyard-agent --replicas 0`."
            )
        time.sleep(_PAUSE_S)


def _stop_runs(runtime: KubernetesRuntime, grace_s: float) -> int:
    runs = [handle.run_id for handle in runtime.recover()]

    def alive() -> list[str]:
        return [run_id for run_id in runs for report in runtime.observe(run_id) if report.exit is None]

    count, give_up_at = len(alive()), time.monotonic() + grace_s + _KILL_TIMEOUT_S
    for run_id in runs:
        runtime.stop(run_id, grace_s, Reason.HOST_SHUTDOWN)
    while left := alive():
        if time.monotonic() > give_up_at:
            raise StillAlive(f"the ends of pods of the runs {', '.join(sorted(set(left)))} are not confirmed")
        time.sleep(_PAUSE_S)
    return count


def examine(options: argparse.Namespace) -> list[Finding]:
    """Findings of the doctor."""
    with closing(_client(options)) as client:
        try:
            agent_id = _known_id(options, client)
        except KubeError:
            agent_id = ""  # the reason is the first finding
        return list(cluster.findings(client, agent_id))


def _known_id(options: argparse.Namespace, client: KubeClient) -> str:
    """The id of the namespace's agent; "" if it has had none. Raises KubeError."""
    found = client.get("secrets", IDENTITY)
    own = saved_identity(options.state_dir) if found is None else _identity(found)
    return "" if own is None else own.agent_id


@contextmanager
def _lease(options: argparse.Namespace, client: KubeClient) -> Iterator[CoordinationLease]:
    lease = CoordinationLease(client, _holder(options), SystemClock())
    try:
        yield lease
    finally:
        lease.release()


def _own_image(options: argparse.Namespace, client: KubeClient) -> str:
    """The image of the pod that this is; "" if it is none. Raises KubeError."""
    pod = None if options.kubeconfig else client.get("pods", socket.gethostname())
    return "" if pod is None else str(pod["spec"]["containers"][0]["image"])


def _holder(options: argparse.Namespace) -> str:
    """A name for the agent of this state directory, whose lock it holds: one that follows it there need not wait."""
    status = options.state_dir.stat()
    return f"{socket.gethostname()}_{lease_file.boot_id()[:8]}-{status.st_dev:x}-{status.st_ino:x}"


def _old_role(error: KubeError) -> str:
    forbidden = isinstance(error, KubeRefused) and error.status == _FORBIDDEN
    return " Apply deploy/kubernetes/agent.yaml of this version again." if forbidden else ""


def _client(options: argparse.Namespace) -> KubeClient:
    return KubeClient(_connection(options), options.namespace)


def _connection(options: argparse.Namespace) -> KubeConnection:
    try:
        return connect(options.kubeconfig, options.context)
    except BadKubeconfig as error:
        raise RuntimeRefused(f"--runtime kubernetes: {error}") from error
