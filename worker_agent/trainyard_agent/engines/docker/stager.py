"""Stager of the docker runtime: a run's images, and the Python environment of a package job.

A package job runs in the image of its runtime version, or in the one that it brings. A container of that image
installs its packages into `staging/RUN/environment` of the state directory, which is mounted read-only into every
replica, at the same path.
"""

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trainyard_agent.engines.docker import puller as image_puller
from trainyard_agent.engines.docker import spec as docker_spec
from trainyard_agent.engines.docker.client import DockerClient, EngineDown, EngineError, EngineRefused
from trainyard_agent.engines.docker.network.firewall import NotEnforced
from trainyard_agent.engines.docker.network.network_policy import Endpoint, endpoints_of
from trainyard_agent.engines.docker.network.networks import Networks
from trainyard_agent.engines.docker.settings import PullPolicy
from trainyard_agent.engines.docker.spec import ImageInfo, Owner
from trainyard_agent.engines.docker.streams.log_copier import LineReader
from trainyard_agent.engines.docker.users import ContainerUsers
from trainyard_agent.host import disk, unix_users
from trainyard_agent.host.files import read_json, remove_tree, write_json
from trainyard_agent.runtimes import installing
from trainyard_agent.runtimes.installing import PACKAGES, SOURCE, InstallLimits
from trainyard_agent.staging import archives, install_limits, install_plan, uv_program
from trainyard_agent.staging.background_stager import BackgroundStager
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_agent.staging.install_secrets import InstallSecrets
from trainyard_agent.staging.job_dirs import JobDirs
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.cluster import PRIMARY, Task
from trainyard_protocol.job.machines import config_of
from trainyard_protocol.job.runtimes import Runtimes
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.observations import ResolvedRun
from trainyard_protocol.wire.sync import RunOrder

_POLL_S = 0.1  # between two inspections of the installing container
_REPORT_S = 2.0  # and between two looks at what it says

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """Options of the stager."""

    runtimes: Runtimes
    pull: PullPolicy = "missing"
    pull_silence_s: float = image_puller.PULL_SILENCE_S
    job_dirs: JobDirs = field(default_factory=JobDirs)
    users: ContainerUsers = field(default_factory=ContainerUsers)
    limits: InstallLimits = field(default_factory=InstallLimits)


class ContainerStager(BackgroundStager):
    """Prepares runs of the docker runtime. `fetcher` downloads the packages."""

    def __init__(
        self,
        root: Path,
        engine: DockerClient,
        owner: Owner,
        fetcher: PackageFetcher,
        settings: ContainerSettings,
        networks: Networks | None = None,
    ) -> None:
        super().__init__(root, settings.limits.patience_s)
        self._engine = engine
        self._asked = ("", False)
        self._owner = owner
        self._fetcher = fetcher
        self._settings = settings
        self._networks = networks or Networks(engine, owner)

    async def discard(self, run_id: str) -> None:
        await super().discard(run_id)
        await self._clean(run_id)

    async def _prepare(self, order: RunOrder) -> Staging:
        training_input = order.training_input
        # The directory tells the next agent that this run was being prepared.
        (self._root / order.run_id).mkdir(mode=0o755, exist_ok=True)
        if training_input.image_uri:
            names = {config_of(training_input, Task.parse(r.task).type).image_uri for r in order.replicas}
            images = {name: await self._ensure_image(order, name, self._settings.pull) for name in sorted(names)}
        else:
            images = {"": await self._runtime_image(order, training_input)}
        image = images[training_input.image_uri]
        environment, installed = await self._environment(order, image) if training_input.package_uris else ("", [])
        python = f"{PACKAGES}/bin/python" if environment else "python3"
        staged = Staging("ready", python=python, images=images, packages=environment)
        return await self._with_job_dir(order, staged, installed)

    async def _with_job_dir(self, order: RunOrder, staged: Staging, installed: Sequence[str]) -> Staging:
        """Choose the users of the images, and prepare the job-dir for that of the primary's, as the last thing before
        the start."""
        try:
            inspections: dict[str, Mapping[str, Any]] = {}
            for name, image in staged.images.items():
                inspection = await _in_thread(partial(self._engine.image, image))
                if inspection is None:
                    raise StagingFailed(Reason.HOST_FAILED, f"Its image {name} was removed from the machine.")
                inspections[name] = inspection
            user_namespace = await _in_thread(self._has_user_namespace)
        except EngineError as error:
            raise StagingFailed(Reason.HOST_FAILED, f"{error}.") from error
        chosen = {
            name: self._settings.users.of(order, ImageInfo.of(inspection), user_namespace)
            for name, inspection in inspections.items()
        }
        users = {name: user for name, user in chosen.items() if user is not None}
        primary = config_of(order.training_input, PRIMARY.type).image_uri
        mount = await asyncio.to_thread(self._settings.job_dirs.prepare, order, users.get(primary))
        reads, refused = await asyncio.to_thread(self._settings.job_dirs.of_others, order, mount)
        resolved = ResolvedRun(images=docker_spec.digests(inspections), installed=(*installed, *refused))
        staged = replace(staged, users=users, reads=tuple(reads), resolved=resolved.bounded())
        if mount is None:
            return staged
        return replace(staged, job_dir=mount.source, job_dir_target=mount.target)

    def _has_user_namespace(self) -> bool:
        """Asked once of each process of the engine, where that is known: it takes long. Raises EngineError."""
        process = self._engine.process()
        if not process or process != self._asked[0]:
            self._asked = (process, self._engine.about().user_namespace)
        return self._asked[1]

    async def _runtime_image(self, order: RunOrder, training_input: TrainingInput) -> str:
        runtimes, version = self._settings.runtimes, training_input.runtime_version
        try:
            name = runtimes.image_for(version, any(replica.has_gpus for replica in order.replicas))
        except InvalidArgument as error:
            raise StagingFailed(Reason.IMAGE_FAILED, error.message) from error
        policy = self._settings.pull
        if runtimes.dockerfile_of(name):  # built by us: no registry has it
            policy = "never"
        try:
            return await self._ensure_image(order, name, policy)
        except StagingFailed as failure:
            if failure.staging.reason is Reason.IMAGE_FAILED and policy != self._settings.pull:
                raise StagingFailed(
                    Reason.IMAGE_FAILED,
                    f"{name}, the image of its runtime version, is not on the agent's machine: "
                    f"`trainyard runtimes build {runtimes.name_of(name)}` builds it there.",
                ) from failure
            raise

    async def _ensure_image(self, order: RunOrder, name: str, policy: PullPolicy) -> str:
        loop = asyncio.get_running_loop()
        cancelled = threading.Event()

        def set_activity(activity: str) -> None:
            if not cancelled.is_set():
                self._set_activity(order.run_id, activity)

        def report(activity: str) -> None:
            loop.call_soon_threadsafe(set_activity, activity)

        silence_s = self._settings.pull_silence_s
        try:
            return await _in_thread(
                lambda: image_puller.ensure_image(self._engine, name, policy, report, cancelled, silence_s)
            )
        finally:
            cancelled.set()

    async def _environment(self, order: RunOrder, image: str) -> tuple[str, list[str]]:
        """Download and install. Returns the directory to mount into the replicas, and what was installed, in
        sentences."""
        directory = self._root / order.run_id
        ready, environment = directory / "ready.json", directory / "environment"
        saved = read_json(ready)
        if saved is not None and saved["image"] == image:
            return str(environment), list(saved.get("notes", ()))
        await asyncio.to_thread(remove_tree, directory)
        source = directory / "source"
        for path in (directory, source, environment):
            path.mkdir(mode=0o755)
        packages = await self._fetcher.fetch(order, source, self._set_activity)
        self._set_activity(order.run_id, installing.activity(package.name for package in packages))
        code, output = await self._install(order, image, source, environment, packages)
        (source / uv_program.NAME).unlink(missing_ok=True)
        (directory / "install.log").write_text(output, encoding="utf-8")
        if code:
            raise StagingFailed(*installing.failure(code, output))
        notes = installing.notes(output)
        write_json(ready, {"image": image, "notes": notes})
        return str(environment), notes

    async def _install(
        self, order: RunOrder, image: str, source: Path, environment: Path, packages: Sequence[Path]
    ) -> tuple[int, str]:
        """Run the installing container to its end: its exit code and output. Nothing of it is left."""

        isolated = await archives.isolated(packages)
        inside = {package: f"{SOURCE}/{package.relative_to(source)}" for package in packages}
        secrets = await self._fetcher.secrets(order, packages)
        uv = await asyncio.to_thread(install_plan.copy_uv, source)
        limits = self._settings.limits
        write = partial(install_plan.write, source, inside, isolated, secrets, uv, patience_s=limits.patience_s)
        variables = await asyncio.to_thread(write)
        user = await asyncio.to_thread(self._give_to_installer, order, source, environment)

        gateway = await _in_thread(self._engine.gateway)
        try:
            await _in_thread(lambda: self._remove_containers(order.run_id))
            spec = docker_spec.staging_spec(
                self._owner,
                order,
                ImageInfo(image),
                list(install_plan.COMMAND),
                variables,
                gateway=gateway,
                directory=str(environment),
                source=str(source),
                user=user,
                network=await _in_thread(lambda: self._networks.create_for_staging(order)),
                memory_bytes=limits.memory_bytes,
                cpus=limits.cpus,
            )
            name = docker_spec.staging_name(order)
            container = await _in_thread(lambda: self._engine.create(name, spec))
            await _in_thread(lambda: self._engine.start(container))
            finish = self._finish(order.run_id, container, secrets)
            return await install_limits.within(limits, finish, lambda: self._installed_bytes(container, environment))
        except EngineRefused as refused:
            error, reason = docker_spec.refused_start(refused.status, refused.message)
            if reason is Reason.START_FAILED:
                raise StagingFailed(Reason.IMAGE_FAILED, installing.no_python(error)) from refused
            raise StagingFailed(Reason.HOST_FAILED, error) from refused
        except (EngineDown, NotEnforced) as error:
            raise StagingFailed(Reason.HOST_FAILED, f"{error}.") from error
        finally:
            await asyncio.shield(self._clean(order.run_id))

    def _give_to_installer(self, order: RunOrder, *directories: Path) -> str:
        """Whom the installation runs as: it runs the setup.py of packages."""
        if os.geteuid() != 0 or self._settings.users.choice == "image":
            return f"{os.geteuid()}:{os.getegid()}"
        user = self._settings.users.unprivileged(order)
        for directory in directories:
            unix_users.give(directory, user.uid, user.gid)
        return user.ids

    async def _finish(self, run_id: str, container: str, secrets: InstallSecrets) -> tuple[int, str]:
        """Wait for the installing container to end. Returns its exit code and output, without secrets."""
        reported = time.monotonic()
        while True:
            inspected = await _in_thread(lambda: self._engine.inspect(container))
            if inspected is None:
                raise StagingFailed(Reason.STAGING_FAILED, "The container that installed it was removed.")
            state = inspected["State"]
            if state["Status"] in ("exited", "dead"):
                code = int(state["ExitCode"])
                if code and state.get("OOMKilled"):
                    raise install_limits.out_of_memory(self._settings.limits)
                return code, secrets.mask.text(await _in_thread(lambda: self._output(container)))
            if time.monotonic() - reported > _REPORT_S:
                output = await _in_thread(lambda: self._output(container))
                if activity := installing.last_activity(output, secrets.mask):
                    self._set_activity(run_id, activity)
                reported = time.monotonic()
            await asyncio.sleep(_POLL_S)

    async def _installed_bytes(self, container: str, environment: Path) -> int:
        written = await _in_thread(lambda: self._engine.disk_bytes(container))
        return written + await asyncio.to_thread(disk.usage, environment)

    def _output(self, container: str) -> str:
        stream = self._engine.log(container, follow=False)
        if stream is None:
            return ""
        reader = LineReader()
        try:
            lines = [line for chunk in stream for line in reader.feed(chunk)] + reader.end()
        finally:
            stream.close()
        return "".join(f"{json.loads(line)['text']}\n" for line in lines)

    async def _clean(self, run_id: str) -> None:
        try:
            await _in_thread(lambda: self._remove_containers(run_id))
        except EngineError as error:
            _log.warning("run %s: its installing container is removed later: %s", run_id, error)

    def _remove_containers(self, run_id: str) -> None:
        """Remove the installing containers of this run with their networks, and orphaned ones. Raises EngineError."""

        def is_unused(labels: Mapping[str, str]) -> bool:
            owner = labels.get(docker_spec.RUN, "")
            return owner == run_id or owner not in self._status

        agent, role = f"{docker_spec.AGENT}={self._owner.agent_id}", f"{docker_spec.ROLE}="
        for container in self._engine.containers(agent, f"{role}{docker_spec.STAGING}"):
            if is_unused(container.labels):
                self._engine.remove(container.id)
        for network, labels in self._engine.networks(agent, f"{role}{docker_spec.STAGING_NETWORK}").items():
            if is_unused(labels):
                self._networks.remove(network, labels)


def package_index(inherited: Mapping[str, str]) -> list[Endpoint]:
    """The index and proxies that `install_plan` passes on."""
    index = [url for name in install_plan.INDEX_VARIABLES for url in inherited.get(name, "").split()]
    return endpoints_of([*index, *(inherited[name] for name in install_plan.PROXIES if name in inherited)])


async def _in_thread(call: Callable[[], _T]) -> _T:
    """Like asyncio.to_thread, in a daemon thread: an engine or a registry may hang for minutes, which must not delay
    other runs or the agent's exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised by the awaiting caller
            outcome: tuple[_T | None, BaseException | None] = (None, error)
        else:
            outcome = (result, None)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, daemon=True).start()
    return await done
