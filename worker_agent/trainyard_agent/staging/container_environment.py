"""Stager of the docker runtime: a run's images, and the Python environment of a package job.

A package job runs in the image of its runtime version. A container of that image installs its packages into
`staging/RUN/environment` of the state directory, which is mounted read-only into every replica, at the same path.
"""

import asyncio
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trainyard_agent.host.files import read_json, remove_tree, write_json
from trainyard_agent.runtimes.docker import spec as docker_spec
from trainyard_agent.runtimes.docker.engine import Engine, EngineDown, EngineError, EngineRefused
from trainyard_agent.runtimes.docker.log_copier import LineReader
from trainyard_agent.runtimes.docker.spec import ImageInfo, Owner
from trainyard_agent.staging import (
    archives,
    image_puller,
    install_script,
    job_dirs,
    program_module,
)
from trainyard_agent.staging.background_stager import BackgroundStager
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_agent.staging.image_puller import PullPolicy
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_agent.staging.pip_output import error_excerpt
from trainyard_protocol.cluster import Task
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.machines import config_of
from trainyard_protocol.runtimes import Runtimes
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import RunOrder
from trainyard_protocol.training_input import TrainingInput

_SOURCE = f"{docker_spec.PACKAGES}-source"
_CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_PASSED_ON = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_NO_INDEX",
    "PIP_DEFAULT_TIMEOUT",
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_POLL_S = 0.1  # between two inspections of the installing container

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """Options of the stager. A job-dir may be mounted if it is below one of `job_dir_roots`."""

    runtimes: Runtimes
    pull: PullPolicy = "missing"
    pull_silence_s: float = image_puller.PULL_SILENCE_S
    job_dir_roots: tuple[Path, ...] = ()


class ContainerStager(BackgroundStager):
    """Prepares runs of the docker runtime. `fetcher` downloads the packages."""

    def __init__(
        self, root: Path, engine: Engine, owner: Owner, fetcher: PackageFetcher, settings: ContainerSettings
    ) -> None:
        super().__init__(root)
        self._engine = engine
        self._owner = owner
        self._fetcher = fetcher
        self._settings = settings

    async def discard(self, run_id: str) -> None:
        await super().discard(run_id)
        await self._clean(run_id)

    async def _prepare(self, order: RunOrder) -> Staging:
        training_input = order.training_input
        job_dir = ""
        if order.directory and not order.directory.startswith("gs://"):
            await asyncio.to_thread(job_dirs.create_default, order.job_dir)
            job_dir = str(
                await asyncio.to_thread(job_dirs.prepare, order.directory, self._settings.job_dir_roots)
            )
        # The directory tells the next agent that this run was being prepared.
        (self._root / order.run_id).mkdir(mode=0o755, exist_ok=True)
        if training_input.image_uri:
            names = {config_of(training_input, Task.parse(r.task).type).image_uri for r in order.replicas}
            images = {
                name: await self._ensure_image(order, name, self._settings.pull) for name in sorted(names)
            }
            return Staging("ready", images=images, job_dir=job_dir)
        image = await self._runtime_image(order, training_input)
        environment = await self._environment(order, image) if training_input.package_uris else ""
        python = f"{docker_spec.PACKAGES}/bin/python" if environment else "python3"
        return Staging("ready", python=python, images={"": image}, packages=environment, job_dir=job_dir)

    async def _runtime_image(self, order: RunOrder, training_input: TrainingInput) -> str:
        runtimes, version = self._settings.runtimes, training_input.runtime_version
        try:
            name = runtimes.image_for(version, any(replica.gpus for replica in order.replicas))
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
                    "`trainyard runtimes build` builds it there.",
                ) from failure
            raise

    async def _ensure_image(self, order: RunOrder, name: str, policy: PullPolicy) -> str:
        loop = asyncio.get_running_loop()
        cancelled = threading.Event()

        def report(activity: str) -> None:
            loop.call_soon_threadsafe(self._set_activity_unless, cancelled, order.run_id, activity)

        silence_s = self._settings.pull_silence_s
        try:
            return await _in_thread(
                lambda: image_puller.ensure_image(self._engine, name, policy, report, cancelled, silence_s)
            )
        finally:
            cancelled.set()

    def _set_activity_unless(self, cancelled: threading.Event, run_id: str, activity: str) -> None:
        if not cancelled.is_set():
            self._set_activity(run_id, activity)

    async def _environment(self, order: RunOrder, image: str) -> str:
        """Download and install. Returns the directory to mount into the replicas."""
        directory = self._root / order.run_id
        ready, environment = directory / "ready.json", directory / "environment"
        saved = read_json(ready)
        if saved is not None and saved["image"] == image:
            return str(environment)
        await asyncio.to_thread(remove_tree, directory)
        source = directory / "source"
        for path in (directory, source, environment):
            path.mkdir(mode=0o755)
        packages = await self._fetcher.fetch(order, source, self._set_activity)
        self._set_activity(order.run_id, f"installing {', '.join(package.name for package in packages)}")
        code, output = await self._install(order, image, source, environment, packages)
        (directory / "install.log").write_text(output, encoding="utf-8")
        if code == install_script.NO_ENVIRONMENT:
            message = f"No environment could be created in its runtime image:  {error_excerpt(output)}"
            raise StagingFailed(Reason.IMAGE_FAILED, message)
        if code:
            raise StagingFailed(Reason.PACKAGES_FAILED, error_excerpt(output))
        write_json(ready, {"image": image})
        return str(environment)

    async def _install(
        self, order: RunOrder, image: str, source: Path, environment: Path, packages: Sequence[Path]
    ) -> tuple[int, str]:
        """Run the installing container to its end: its exit code and output. Nothing of it is left."""

        isolated = [p for p in packages if await archives.needs_isolation(p)]

        def write_plan() -> dict[str, str]:
            inside = {p: f"{_SOURCE}/{p.relative_to(source)}" for p in packages}
            plan: dict[str, object] = {
                "environment": docker_spec.PACKAGES,
                "with_base": [inside[p] for p in packages if p not in isolated],
                "isolated": [inside[p] for p in isolated],
            }
            module = program_module.source()
            if module is not None:
                shutil.copyfile(module, source / program_module.NAME)
                plan["module"] = f"{_SOURCE}/{program_module.NAME}"
            write_json(source / "plan.json", plan)
            shutil.copyfile(install_script.__file__, source / "install.py")
            return pip_environment(os.environ, source)

        variables = await asyncio.to_thread(write_plan)
        command = ["python3", f"{_SOURCE}/install.py", f"{_SOURCE}/plan.json"]
        gateway = await _in_thread(self._engine.gateway)
        spec = docker_spec.staging_spec(
            self._owner,
            order,
            ImageInfo(image),
            command,
            variables,
            gateway=gateway,
            directory=str(environment),
            source=str(source),
            user=f"{os.getuid()}:{os.getgid()}",
        )
        name = f"{docker_spec.network_name(order)}-staging"
        try:
            await _in_thread(lambda: self._remove_containers(order.run_id))
            container = await _in_thread(lambda: self._engine.create(name, spec))
            await _in_thread(lambda: self._engine.start(container))
            while True:
                seen = await _in_thread(lambda: self._engine.inspect(container))
                if seen is None:
                    raise StagingFailed(Reason.STAGING_FAILED, "The container that installed it was removed.")
                if seen["State"]["Status"] in ("exited", "dead"):
                    return int(seen["State"]["ExitCode"]), await _in_thread(lambda: self._output(container))
                await asyncio.sleep(_POLL_S)
        except EngineRefused as refused:
            error, reason = docker_spec.refused_start(refused.status, refused.message)
            if reason is Reason.START_FAILED:
                raise StagingFailed(
                    Reason.IMAGE_FAILED, f"Its runtime image has no python3: {error}"
                ) from refused
            raise StagingFailed(Reason.HOST_FAILED, error) from refused
        except EngineDown as down:
            raise StagingFailed(Reason.HOST_FAILED, f"{down}.") from down
        finally:
            await asyncio.shield(self._clean(order.run_id))

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
        """Remove the installing containers of this run, and orphaned ones. Raises EngineError."""
        labels = (f"{docker_spec.AGENT}={self._owner.agent_id}", f"{docker_spec.ROLE}={docker_spec.STAGING}")
        for container in self._engine.containers(*labels):
            owner = container.labels.get(docker_spec.RUN, "")
            if owner == run_id or owner not in self._status:
                self._engine.remove(container.id)


def pip_environment(inherited: Mapping[str, str], source: Path) -> dict[str, str]:
    """pip's environment in the container: the user's index and proxies, and the user's certificates, copied to
    `source`. No other variables of the agent."""
    passed = {name: inherited[name] for name in (*_PASSED_ON, *_PROXIES) if name in inherited}
    bundle = next((inherited[name] for name in _CA_VARIABLES if inherited.get(name)), "")
    if bundle and Path(bundle).is_file():
        shutil.copyfile(bundle, source / "certificates.pem")
        passed["PIP_CERT"] = f"{_SOURCE}/certificates.pem"
    return {**passed, "HOME": "/tmp", "PYTHONUNBUFFERED": "1"}  # noqa: S108 - inside the container


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
