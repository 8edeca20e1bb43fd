"""The kubernetes engine: jobs as pods of a namespace.

Its agent's identity is in a Secret of the namespace, so it needs no volume. One agent acts in a namespace.
"""

import base64
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from trainyard_agent.engines.contract import STAGING, Claim, Engine, OpenEngine, Place, SettingsRefused
from trainyard_agent.engines.kubernetes import doctor
from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeError, KubeNamespaceMissing, KubeRefused
from trainyard_agent.engines.kubernetes.api.connection import BadKubeconfig, connect
from trainyard_agent.engines.kubernetes.capacity import metrics
from trainyard_agent.engines.kubernetes.capacity.admission import GangAdmission, NotAdmitted, choose
from trainyard_agent.engines.kubernetes.capacity.capacity_reader import CapacityReader, read_capacity
from trainyard_agent.engines.kubernetes.pods.objects import PodOwner
from trainyard_agent.engines.kubernetes.runtime import KubernetesRuntime
from trainyard_agent.engines.kubernetes.settings import IN_FLIGHT, KubernetesSettings
from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import PodJobDirs
from trainyard_agent.engines.kubernetes.staging.pod_packages import PodPackages, PodPackageSettings, no_images
from trainyard_agent.engines.kubernetes.staging.pod_stager import PodStager
from trainyard_agent.host.identity import Identity, new_identity
from trainyard_agent.runtimes.base import Orphan, Runtime
from trainyard_agent.settings import AgentSettings
from trainyard_agent.staging.base import Stager
from trainyard_protocol.answers.health import Finding
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName, RuntimeOffer

IDENTITY = "trainyard-agent-identity"
"""The Secret with the agent's id and key."""

CONTAINER = "agent"
"""The name of the agent's container in deploy/kubernetes."""

_MODULE = "trainyard_agent"
_FORBIDDEN = 403
_PACKAGE_JOBS: RuntimeName = "process"
"""The name on the wire under which package jobs are refused."""


class KubernetesEngine(Engine):
    name: RuntimeName = KubernetesRuntime.name

    def identity(self, settings: AgentSettings) -> Identity:
        """The identity of the namespace's agent, made at first use."""
        with _refusing(), closing(_client(settings)) as client:
            return _identity(client.get("secrets", IDENTITY) or client.create("secrets", secret_of(new_identity())))

    def capacity(self, settings: AgentSettings) -> Capacity:
        """The capacity that `--pool` says, or that the cluster has now."""
        kubernetes = settings.of(KubernetesSettings)
        if kubernetes.pool:
            return Capacity.of_pools(*kubernetes.pool)
        with _refusing(), closing(_client(settings)) as client:
            return read_capacity(client, beside_others=not kubernetes.local_queue)

    @contextmanager
    def open(self, place: Place) -> Iterator[OpenEngine]:
        settings, kubernetes = place.settings, place.settings.of(KubernetesSettings)
        with closing(_client(settings)) as client:
            owner = PodOwner(place.agent_id)
            with _refusing():
                client.list("pods", owner.selector)
                cluster = _Cluster.of(client, kubernetes)
            reader = CapacityReader(client, beside_others=not kubernetes.local_queue)
            offer = RuntimeOffer(name=self.name, replica_environment=settings.environment, about=cluster.about)
            runtime = KubernetesRuntime(
                settings.state_dir, client, owner, cluster.admission, cluster.measures_usage, cluster.init_image
            )

            def described(info: AgentInfo) -> AgentInfo:
                in_flight = kubernetes.in_flight or IN_FLIGHT
                update: dict[str, object] = {
                    "capacity": reader.newest(info.capacity),
                    "runs_images": True,
                    "capacity_mode": "strict",
                    "in_flight": in_flight if kubernetes.local_queue else 0,
                }
                if problem := no_images(place.table):
                    refused = RuntimeOffer(name=_PACKAGE_JOBS, problem=problem, retiring=True)
                    update |= {"runtime": _PACKAGE_JOBS, "runtimes": (refused, *info.runtimes)}
                return info.model_copy(update=update)

            with closing(reader), closing(runtime):
                if not kubernetes.pool:
                    reader.start()
                yield OpenEngine(
                    runtime,
                    _stager(place),
                    lambda: offer,
                    lambda _wanted, _uses_gpus: Claim(True, "the agent is that of a cluster"),
                    described,
                )

    @contextmanager
    def attach(self, settings: AgentSettings) -> Iterator[Runtime]:
        with closing(_client(settings)) as client, _refusing():
            owner = PodOwner(_known_id(client))
            with closing(KubernetesRuntime(settings.state_dir, client, owner)) as runtime:
                yield runtime

    def where(self, settings: AgentSettings) -> str:
        with closing(_client(settings)) as client:
            return f"in the namespace {client.namespace}"

    def examine(self, settings: AgentSettings) -> Iterator[Finding]:
        with closing(_client(settings)) as client:
            yield from doctor.findings(client, settings.of(KubernetesSettings))

    def orphans(self, settings: AgentSettings) -> list[Orphan]:
        with closing(_client(settings)) as client:
            return doctor.orphans(client, _known_id(client), settings.of(KubernetesSettings))


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Facts of a cluster that stay the same."""

    admission: GangAdmission
    measures_usage: bool
    init_image: str
    about: str

    @classmethod
    def of(cls, client: KubeClient, kubernetes: KubernetesSettings) -> "_Cluster":
        """Raises KubeError, SettingsRefused."""
        try:
            admission = choose(client, kubernetes.local_queue, dict(kubernetes.queue_class))
        except NotAdmitted as error:
            raise SettingsRefused(str(error)) from error
        init_image = kubernetes.init_image
        if not init_image and not kubernetes.kubeconfig and (own := client.get("pods", socket.gethostname())):
            init_image = image_of_agent(own)
        parts = (f"Kubernetes {client.version()}", f"namespace {client.namespace}", admission.about)
        return cls(admission, client.has_group(metrics.GROUP), init_image, ", ".join(filter(None, parts)))


def _stager(place: Place) -> Stager:
    settings, kubernetes = place.settings, place.settings.of(KubernetesSettings)
    packages = PodPackageSettings(
        place.table, kubernetes.server_url_for_pods or settings.server, settings.certificates, settings.install_limits
    )
    return PodStager(
        settings.state_dir / STAGING,
        PodJobDirs(kubernetes.job_dir_claim, settings.one_user),
        PodPackages(place.control_plane, place.fetcher, packages),
        settings.install_limits.patience_s,
    )


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except KubeError as error:
        forbidden = isinstance(error, KubeRefused) and error.status == _FORBIDDEN
        role = " Apply deploy/kubernetes/agent.yaml of this version again." if forbidden else ""
        if isinstance(error, KubeNamespaceMissing):
            role = " Name an existing one with --namespace, or create it: `kubectl create namespace NAME`."
        raise SettingsRefused(f"--runtime kubernetes: {error.message}{role}") from error


def secret_of(identity: Identity) -> dict[str, Any]:
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
        raise SettingsRefused(f"The Secret {IDENTITY} is not that of an agent: it has no {error}.") from error
    return Identity(values["agent_id"], values["key"])


def _known_id(client: KubeClient) -> str:
    """The id of the namespace's agent; "" if it has had none. Raises KubeError."""
    secret = client.get("secrets", IDENTITY)
    return "" if secret is None else _identity(secret).agent_id


def image_of_agent(pod: Mapping[str, Any]) -> str:
    """The image of the agent in its pod, to which a cluster may have added containers in any place: that of the
    container `agent`, as in deploy/kubernetes, else of the one that starts an agent, or of the only one. Raises
    SettingsRefused."""
    containers = {str(container["name"]): container for container in pod["spec"]["containers"]}
    words = {name: (*(spec.get("command") or ()), *(spec.get("args") or ())) for name, spec in containers.items()}
    starting = [name for name in containers if _MODULE in words[name]]
    for names in ([CONTAINER] if CONTAINER in containers else [], starting, list(containers)):
        if len(names) == 1:
            return str(containers[names[0]]["image"])
    raise SettingsRefused(
        f"The agent's pod {pod['metadata']['name']} has the containers {', '.join(sorted(containers))}, and none is "
        f"called {CONTAINER}. Call the agent's so, or give --init-image, an image with python3 for the pods of gangs."
    )


def _client(settings: AgentSettings) -> KubeClient:
    kubernetes = settings.of(KubernetesSettings)
    try:
        return KubeClient(connect(kubernetes.kubeconfig, kubernetes.context), kubernetes.namespace)
    except BadKubeconfig as error:
        raise SettingsRefused(f"--runtime kubernetes: {error}") from error


ENGINE = KubernetesEngine()
