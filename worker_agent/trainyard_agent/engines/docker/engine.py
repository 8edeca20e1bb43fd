"""The docker engine: jobs in containers of this machine."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from trainyard_agent.engines.contract import STAGING, Engine, OpenEngine, Place, SettingsRefused
from trainyard_agent.engines.docker import doctor
from trainyard_agent.engines.docker.claim import claim
from trainyard_agent.engines.docker.client import DockerClient, EngineError, EngineInfo
from trainyard_agent.engines.docker.network.network_policy import endpoints_of
from trainyard_agent.engines.docker.network.networks import Networks
from trainyard_agent.engines.docker.probe import ANSWER_S, EngineProbe, EngineState
from trainyard_agent.engines.docker.runtime import DockerRuntime
from trainyard_agent.engines.docker.settings import DockerSettings
from trainyard_agent.engines.docker.spec import HOST, STORAGE_ROOTS, Owner
from trainyard_agent.engines.docker.stager import ContainerSettings, ContainerStager, package_index
from trainyard_agent.engines.docker.users import ContainerUsers
from trainyard_agent.host import machine_id
from trainyard_agent.host.identity import identity
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.runtimes.base import Orphan, Runtime
from trainyard_agent.settings import AgentSettings
from trainyard_agent.staging.job_dirs import JobDirs
from trainyard_protocol.answers.health import Finding
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.job.runtimes import Runtimes
from trainyard_protocol.net.gcs import PROXY_ROOTS
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName, RuntimeOffer

_ENGINE_TIMEOUT_S, _ENGINE_PAUSE_S = 30.0, 0.5


class DockerEngine(Engine):
    name: RuntimeName = "docker"

    @contextmanager
    def open(self, place: Place) -> Iterator[OpenEngine]:
        settings = place.settings
        images, reserve = _built_images(place.table), settings.disk_reserve_bytes
        with (
            closing(DockerClient()) as client,
            closing(DockerClient(timeout_s=ANSWER_S)) as polled,
            closing(EngineProbe(polled, images, reserve)) as probe,
        ):
            if place.admits:
                _poll_first(probe, demanded=place.alone)
                probe.start()
            runtime, stager = _build(place, client, probe)
            environment = environment_in_containers(settings.environment)
            one_user, roots = settings.one_user, settings.of(DockerSettings).job_dir_root
            with closing(runtime):
                yield OpenEngine(
                    runtime,
                    stager,
                    lambda: offered(probe.state, environment),
                    lambda wanted, uses_gpus: claim(
                        wanted, uses_gpus, place.table, probe.state.info is not None, probe.state.images
                    ),
                    lambda info: described(info, probe.state) if place.admits else info,
                    # The job-dirs of one user may be in any of many places: of these a disk counts once a run has
                    # failed of it.
                    written=() if one_user else tuple(root.absolute() for root in roots),
                )

    @contextmanager
    def attach(self, settings: AgentSettings) -> Iterator[Runtime]:
        with closing(DockerClient()) as client:
            client.about()
            owner = Owner(identity(settings.state_dir).agent_id)
            with closing(DockerRuntime(settings.state_dir, client, owner)) as runtime:
                yield runtime

    def examine(self, settings: AgentSettings) -> Iterator[Finding]:
        return doctor.findings(settings.state_dir)

    def orphans(self, settings: AgentSettings) -> list[Orphan]:
        return doctor.orphans(settings.state_dir)


def _build(place: Place, client: DockerClient, probe: EngineProbe) -> tuple[DockerRuntime, ContainerStager]:
    settings, containers = place.settings, place.settings.of(DockerSettings)
    state_dir, policy = settings.state_dir, containers.policy(settings.one_user)
    owner = Owner(place.agent_id, settings.server, str(state_dir), machine_id.identity())
    given = environment_in_containers(settings.environment).values()
    allowed = [*containers.allow_address, *endpoints_of(given)]
    index = [*containers.allow_address, *package_index(os.environ)]
    networks = Networks(client, owner, policy, allowed, index)
    if place.admits:
        _require_policy(networks, policy, probe.state)
    staging = ContainerSettings(
        place.table,
        containers.pull,
        job_dirs=JobDirs(containers.job_dir_root, settings.one_user),
        users=ContainerUsers(containers.container_user, settings.one_user),
        limits=settings.install_limits,
    )
    roots = settings.environment.get(PROXY_ROOTS, "")
    limits = settings.pids_limit, probe, networks, settings.disk_bytes
    on_host = containers.span == "host-network"
    runtime = DockerRuntime(state_dir, client, owner, *limits, roots, settings.reach, on_host)
    return runtime, ContainerStager(state_dir / STAGING, client, owner, place.fetcher, staging, networks)


def offered(engine: EngineState, environment: Mapping[str, str]) -> RuntimeOffer:
    """The offer of containers with these variables."""
    return RuntimeOffer(
        name=DockerEngine.name, replica_environment=dict(environment), about=engine.about, problem=engine.problem
    )


def described(info: AgentInfo, engine: EngineState) -> AgentInfo:
    """The agent whose runs may be containers: its capacity is what the engine has of the machine's."""
    here = info.capacity
    capacity = capacity_of(here, engine.info) if engine.info else here
    return info.model_copy(update={"runs_images": not engine.problem, "capacity": capacity})


def capacity_of(offered: Capacity, engine: EngineInfo) -> Capacity:
    """The part that the container engine has, which may run in a smaller virtual machine."""
    return offered.model_copy(
        update={
            "cpus": tuple(cpu for cpu in offered.cpus if cpu < engine.cpus),
            "memory_bytes": min(offered.memory_bytes, engine.memory_bytes),
        }
    )


def from_containers(value: str) -> str:
    """Replace this machine's loopback address in a URL by the name that containers know; else unchanged."""
    return re.sub(r"(?<=://)(127\.0\.0\.1|localhost|\[::1\])(?=[:/]|$)", HOST, value)


def environment_in_containers(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of --replica-env, as containers reach what they name."""
    variables = {name: from_containers(value) for name, value in environment.items()}
    return {**variables, PROXY_ROOTS: STORAGE_ROOTS} if PROXY_ROOTS in variables else variables


def _require_policy(networks: Networks, policy: str, engine: EngineState) -> None:
    """Raises SettingsRefused if the network policy cannot be enforced. With an engine that does not answer yet, each
    run fails that it cannot be enforced for."""
    if engine.info is None:
        return
    try:
        networks.check()
    except EngineError as error:
        raise SettingsRefused(
            f"--network {policy} cannot be enforced: {error}. It takes root (CAP_NET_ADMIN), iptables, and the network "
            "namespace of the container engine. With --network all, containers of jobs reach every service of this "
            "machine that listens on more than loopback."
        ) from error


def _built_images(table: Runtimes) -> frozenset[str]:
    """Images whose presence decides where a job runs: of versions with a line of their own, if they are built."""
    own = (table.own_image(version, gpus) for version in table.versions for gpus in (False, True))
    return frozenset(image.image for image in own if image is not None and image.dockerfile)


def _poll_first(probe: EngineProbe, demanded: bool) -> None:
    """Ask the engine once; or wait for one that starts with the machine, and raise SettingsRefused without."""
    if not probe.poll().problem or not demanded:
        return
    if not wait_until(lambda: not probe.poll().problem, deadline_in(_ENGINE_TIMEOUT_S), _ENGINE_PAUSE_S):
        raise SettingsRefused(f"--runtime docker: {probe.state.problem}. Start Docker, or use --runtime auto.")


ENGINE = DockerEngine()
