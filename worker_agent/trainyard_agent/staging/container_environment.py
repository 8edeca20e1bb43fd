"""What a run of containers needs before it starts: its images, and for a package job its environment.

A package job runs in the image of its runtime version. Its packages are installed by a container of that very
image into `staging/RUN/environment` of the state directory, which every replica then has mounted, read-only,
at the same place.
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
from trainyard_agent.runtimes.docker import spec as containers
from trainyard_agent.runtimes.docker.engine import Engine, EngineDown, EngineError, EngineRefused
from trainyard_agent.runtimes.docker.log_copier import LineReader
from trainyard_agent.runtimes.docker.spec import ImageInfo, Owner
from trainyard_agent.staging import (
    archives,
    job_dirs,
)
from trainyard_agent.staging import (
    image_puller as images,
)
from trainyard_agent.staging import (
    install_script as install,
)
from trainyard_agent.staging.background_stager import BackgroundStager
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_agent.staging.image_puller import PullPolicy
from trainyard_agent.staging.package_fetcher import Fetcher
from trainyard_agent.staging.pip_output import telling
from trainyard_protocol.cluster import Task
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.machines import config_of
from trainyard_protocol.runtimes import Runtimes
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import RunOrder
from trainyard_protocol.training_input import TrainingInput, parse_training_input

_SOURCE = f"{containers.PACKAGES}-source"
_CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_PASSED_ON = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_NO_INDEX",
    "PIP_DEFAULT_TIMEOUT",
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_LOOK_S = 0.1  # between two looks at the container that installs

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """`job_dir_roots` are the directories of this machine below which a job-dir may be mounted."""

    runtimes: Runtimes
    pull: PullPolicy = "missing"
    pull_silence_s: float = images.PULL_SILENCE_S
    job_dir_roots: tuple[Path, ...] = ()


class ContainerStager(BackgroundStager):
    """For the docker runtime. `fetcher` brings the packages."""

    def __init__(
        self, root: Path, engine: Engine, owner: Owner, fetcher: Fetcher, settings: ContainerSettings
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
        training_input = parse_training_input(order.training_input)
        job_dir = ""
        if training_input.job_dir and not training_input.job_dir.startswith("gs://"):
            job_dir = str(
                await asyncio.to_thread(
                    job_dirs.prepared, training_input.job_dir, self._settings.job_dir_roots
                )
            )
        # The directory is what tells the next agent that there was something to prepare.
        (self._root / order.run_id).mkdir(mode=0o755, exist_ok=True)
        if training_input.image_uri:
            names = {config_of(training_input, Task.parse(r.task).type).image_uri for r in order.replicas}
            found = {name: await self._present(order, name, self._settings.pull) for name in sorted(names)}
            return Staging("ready", images=found, job_dir=job_dir)
        image = await self._runtime_image(order, training_input)
        environment = await self._environment(order, image) if training_input.package_uris else ""
        python = f"{containers.PACKAGES}/bin/python" if environment else "python3"
        return Staging("ready", python=python, images={"": image}, packages=environment, job_dir=job_dir)

    async def _runtime_image(self, order: RunOrder, training_input: TrainingInput) -> str:
        runtimes, version = self._settings.runtimes, training_input.runtime_version
        try:
            name = runtimes.image_for(version, any(replica.gpus for replica in order.replicas))
        except InvalidArgument as error:
            raise StagingFailed(Reason.IMAGE_FAILED, error.message) from error
        policy = self._settings.pull
        if runtimes.dockerfile_of(name):  # one of ours, which no registry has
            policy = "never"
        try:
            return await self._present(order, name, policy)
        except StagingFailed as failure:
            if failure.staging.reason is Reason.IMAGE_FAILED and policy != self._settings.pull:
                raise StagingFailed(
                    Reason.IMAGE_FAILED,
                    f"{name}, the image of its runtime version, is not on the agent's machine: "
                    "`trainyard runtimes build` makes it there.",
                ) from failure
            raise

    async def _present(self, order: RunOrder, name: str, policy: PullPolicy) -> str:
        loop = asyncio.get_running_loop()
        given_up = threading.Event()

        def say(sentence: str) -> None:
            loop.call_soon_threadsafe(self._say_unless, given_up, order.run_id, sentence)

        silence_s = self._settings.pull_silence_s
        try:
            return await _in_thread(
                lambda: images.present(self._engine, name, policy, say, given_up, silence_s)
            )
        finally:
            given_up.set()

    def _say_unless(self, given_up: threading.Event, run_id: str, sentence: str) -> None:
        if not given_up.is_set():
            self._say(run_id, sentence)

    async def _environment(self, order: RunOrder, image: str) -> str:
        """Everything from the first download to the directory that the replicas are given."""
        directory = self._root / order.run_id
        ready, environment = directory / "ready.json", directory / "environment"
        known = read_json(ready)
        if known is not None and known["image"] == image:
            return str(environment)
        await asyncio.to_thread(remove_tree, directory)
        source = directory / "source"
        for path in (directory, source, environment):
            path.mkdir(mode=0o755)
        packages = await self._fetcher.fetch(order, source, self._say)
        self._say(order.run_id, f"installing {', '.join(package.name for package in packages)}")
        code, output = await self._install(order, image, source, environment, packages)
        (directory / "install.log").write_text(output, encoding="utf-8")
        if code == install.NO_ENVIRONMENT:
            message = f"No environment could be made in its runtime image: {telling(output)}"
            raise StagingFailed(Reason.IMAGE_FAILED, message)
        if code:
            raise StagingFailed(Reason.PACKAGES_FAILED, telling(output))
        write_json(ready, {"image": image})
        return str(environment)

    async def _install(
        self, order: RunOrder, image: str, source: Path, environment: Path, packages: Sequence[Path]
    ) -> tuple[int, str]:
        """Run the installing container to its end: its exit code and output. Nothing of it is left."""

        def write_plan() -> dict[str, str]:
            inside = {p: f"{_SOURCE}/{p.relative_to(source)}" for p in packages}
            isolated = [p for p in packages if archives.needs_isolation(p)]
            plan = {
                "environment": containers.PACKAGES,
                "with_base": [inside[p] for p in packages if p not in isolated],
                "isolated": [inside[p] for p in isolated],
            }
            write_json(source / "plan.json", plan)
            shutil.copyfile(install.__file__, source / "install.py")
            return pip_environment(os.environ, source)

        variables = await asyncio.to_thread(write_plan)
        command = ["python3", f"{_SOURCE}/install.py", f"{_SOURCE}/plan.json"]
        gateway = await _in_thread(self._engine.gateway)
        spec = containers.staging_spec(
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
        name = f"{containers.network_name(order)}-staging"
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
                await asyncio.sleep(_LOOK_S)
        except EngineRefused as refused:
            trouble, reason = containers.refused_start(refused.status, refused.message)
            if reason is Reason.START_FAILED:
                raise StagingFailed(
                    Reason.IMAGE_FAILED, f"Its runtime image has no python3: {trouble}"
                ) from refused
            raise StagingFailed(Reason.HOST_FAILED, trouble) from refused
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
            _log.warning("run %s: what installed its packages is removed later: %s", run_id, error)

    def _remove_containers(self, run_id: str) -> None:
        """The installing containers of this run, and those that belong to nothing we prepare: an agent was
        killed, or the engine was not there when they were to go. Raises EngineError."""
        labels = (f"{containers.AGENT}={self._owner.agent_id}", f"{containers.ROLE}={containers.STAGING}")
        for container in self._engine.containers(*labels):
            owner = container.labels.get(containers.RUN, "")
            if owner == run_id or owner not in self._status:
                self._engine.remove(container.id)


def pip_environment(inherited: Mapping[str, str], source: Path) -> dict[str, str]:
    """What pip in the container is told: the user's index and proxies; the certificates of this machine, copied
    to `source`, where the user set any. Nothing else of the agent's."""
    kept = {name: inherited[name] for name in (*_PASSED_ON, *_PROXIES) if name in inherited}
    bundle = next((inherited[name] for name in _CA_VARIABLES if inherited.get(name)), "")
    if bundle and Path(bundle).is_file():
        shutil.copyfile(bundle, source / "certificates.pem")
        kept["PIP_CERT"] = f"{_SOURCE}/certificates.pem"
    return {**kept, "HOME": "/tmp", "PYTHONUNBUFFERED": "1"}  # noqa: S108 - inside the container


async def _in_thread(call: Callable[[], _T]) -> _T:
    """Like asyncio.to_thread, in a thread that nothing waits for: an engine or a registry may hang for
    minutes, and neither other runs nor the end of the agent must wait so long."""
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
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            outcome: tuple[_T | None, BaseException | None] = (None, error)
        else:
            outcome = (result, None)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, daemon=True).start()
    return await done
