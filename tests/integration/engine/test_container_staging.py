"""Staging of containers, from real registries and by a real pip in a container."""

import asyncio
import base64
import hashlib
import io
import json
import os
import socket
import tarfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from beds.certificates import Authority
from beds.engines import Engine as RealEngine
from beds.installed import program_wheel
from beds.registry import Fault, Hangs, Pauses, Registry, RequiresAuth
from trainyard_agent.engines.docker import spec
from trainyard_agent.engines.docker.client import DockerClient
from trainyard_agent.engines.docker.network.network_policy import Endpoint
from trainyard_agent.engines.docker.network.networks import Networks
from trainyard_agent.engines.docker.spec import Owner
from trainyard_agent.engines.docker.stager import ContainerSettings, ContainerStager
from trainyard_agent.engines.docker.users import ContainerUsers
from trainyard_agent.runtimes.base import ProgramUser
from trainyard_agent.runtimes.installing import PACKAGES, InstallLimits
from trainyard_agent.staging import install_limits
from trainyard_agent.staging.base import Staging
from trainyard_agent.staging.job_dirs import JobDirs
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_protocol.job.runtimes import RuntimeImage, Runtimes, RuntimeVersion
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder
from unit.agent.stub_server import StubServer, run_order

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
TOO_MANY = json.dumps({"errors": [{"code": "TOOMANYREQUESTS", "message": "You have reached your pull rate limit."}]})


class Host:
    """A stager on a real engine, and what its jobs are given."""

    def __init__(self, engine: RealEngine, root: Path) -> None:
        self.engine = engine
        self.root = root
        self.server = StubServer()
        self.owner = Owner(uuid.uuid4().hex)
        self.activities: list[str] = []
        self.runtimes = self.runtime_image(engine.base_image)

    @staticmethod
    def runtime_image(image: str, dockerfile: str = "") -> Runtimes:
        images = {"base": RuntimeImage(image=image, dockerfile=dockerfile)}
        return Runtimes(images=images, versions={"*": RuntimeVersion(cpu="base")})

    @asynccontextmanager
    async def stager(self, network: Mapping[str, Any] | None = None, **settings: Any) -> AsyncIterator[ContainerStager]:
        given = ContainerSettings(**{"runtimes": self.runtimes, **settings})
        with closing(DockerClient(self.engine.url)) as connection:
            async with self.server.client() as client:
                fetcher = PackageFetcher(client, "")
                networks = Networks(connection, self.owner, **(network or {}))
                stager = ContainerStager(self.root / "staging", connection, self.owner, fetcher, given, networks)
                try:
                    yield stager
                finally:
                    await stager.close()

    async def finish(self, stager: ContainerStager, order: RunOrder) -> Staging:
        stager.begin(order)
        async with asyncio.timeout(120):
            while stager.status()[order.run_id].phase == "preparing":
                self.activities.append(stager.status()[order.run_id].activity)
                await asyncio.sleep(0.01)
        return stager.status()[order.run_id]

    async def prepare(self, order: RunOrder, **settings: Any) -> Staging:
        async with self.stager(**settings) as stager:
            return await self.finish(stager, order)

    def package(self, name: str = "prog", **files: str) -> str:
        """The staged sdist of a package, as `jobs submit` makes one."""
        content = io.BytesIO()
        setup = f"from setuptools import setup; setup(name={name!r}, version='1.0', packages=[{name!r}])"
        with tarfile.open(fileobj=content, mode="w:gz") as tar:
            for path, text in {"setup.py": setup, f"{name}/__init__.py": "", **files}.items():
                entry = tarfile.TarInfo(f"{name}-1.0/{path}")
                entry.size = len(text.encode())
                tar.addfile(entry, io.BytesIO(text.encode()))
        sha256 = hashlib.sha256(content.getvalue()).hexdigest()
        self.server.packages[sha256] = content.getvalue()
        return f"staging://{sha256}/{name}-1.0.tar.gz"

    def packaged(self, **files: str) -> RunOrder:
        """A run of a package with these files."""
        return run_order(uuid.uuid4().hex, CHIEF, pythonModule="prog", packageUris=[self.package(**files)])

    def remaining(self) -> list[str]:
        return self.engine.remaining(f"{spec.AGENT}={self.owner.agent_id}")


@pytest.fixture
def host(engine: RealEngine, tmp_path: Path) -> Iterator[Host]:
    host = Host(engine, tmp_path)
    yield host
    assert host.remaining() == []


@pytest.fixture
def image(engine: RealEngine) -> Iterator[str]:
    with unseen(engine) as name:
        yield name


@contextmanager
def unseen(engine: RealEngine) -> Iterator[str]:
    """A small image that no engine has seen before."""
    name = engine.build(
        f"trainyard-test-{uuid.uuid4().hex[:8]}", "FROM scratch\nCOPY n /n\n", {"n": os.urandom(4 << 20)}
    )
    yield name
    for found in engine.client().images.list():
        if any(name in tag for tag in found.tags):
            engine.client().images.remove(str(found.id), force=True)


def image_order(name: str, **given: Any) -> RunOrder:
    return run_order(uuid.uuid4().hex, CHIEF, pythonModule="", masterConfig={"imageUri": name}, **given)


def offered(registry: Registry, engine: RealEngine, image: str) -> str:
    """The image is in the registry alone."""
    name = registry.add(engine, image, f"{image}:1")
    engine.client().images.remove(image)
    return name


async def waits_or_ends(stager: ContainerStager, order: RunOrder) -> str:
    """The failure that a run waits out; the message of its end if it does not wait."""
    async with asyncio.timeout(60):
        while (status := stager.status()[order.run_id]).phase == "preparing" and "tries again" not in status.activity:
            await asyncio.sleep(0.01)
    return status.activity or status.message


async def test_image_that_is_missing_is_pulled_with_progress(host: Host, image: str) -> None:
    with Pauses.start() as registry:
        name = offered(registry, host.engine, image)
        order = image_order(name)
        async with host.stager() as stager:
            stager.begin(order)
            async with asyncio.timeout(60):
                while "% of" not in (printed := stager.status()[order.run_id].activity):
                    await asyncio.sleep(0.01)
            registry.released.set()
            staged = await host.finish(stager, order)
    assert printed.startswith(f"pulling {name}: ")
    assert staged.phase == "ready"
    assert staged.images == {name: host.engine.client().images.get(name).id}
    assert staged.resolved is not None
    assert staged.resolved.images[name].startswith(f"{name.rpartition(':')[0]}@sha256:")


FAULTS = {
    "registry unreachable": [Fault(layers=True)],
    "the registry fails": [Fault(502), Fault(503, "<h1>Not found</h1>")],
    "the registry's rate limit is reached": [Fault(429), Fault(429, TOO_MANY, layers=True)],
}


async def test_registry_that_is_away_for_a_while_is_waited_for_whatever_it_does(host: Host) -> None:
    wrong = []
    with Registry.start() as registry:
        async with host.stager() as stager:
            for meaning, fault in [(meaning, fault) for meaning, faults in FAULTS.items() for fault in faults]:
                with unseen(host.engine) as image:
                    order = image_order(offered(registry, host.engine, image))
                    registry.fault = fault
                    stager.begin(order)
                    message = await waits_or_ends(stager, order)
                    registry.fault = None
                    ended = await host.finish(stager, order)
                notes = ended.resolved.installed if ended.resolved else ()
                if ended.phase != "ready" or meaning not in message or not any(meaning in note for note in notes):
                    wrong.append((fault, message, ended))
    assert wrong == []


async def test_registry_that_refuses_an_image_or_cannot_be_asked_has_a_verdict_at_once_or_is_waited_for(
    host: Host, tmp_path: Path
) -> None:
    with closing(DockerClient(host.engine.url)) as engine:
        bridge = engine.gateway()
    certificate = Authority(tmp_path).issue(bridge)
    with (
        unseen(host.engine) as image,
        Registry.start() as registry,
        RequiresAuth.start() as closed,
        Registry.start(bridge) as plain,  # engines ask for TLS at any address but loopback
        Registry.start(bridge, certificate) as untrusted,
        Registry.start(bridge, certificate) as cut,
        Hangs.start() as silent,
    ):
        name = offered(registry, host.engine, image)
        cut.fault = Fault()
        refused = {
            name.removesuffix(":1") + ":2": "image not found",
            f"{registry.address}/other:1": "image not found",
            registry.put_foreign("foreign:1"): "it has no image for the platform of this machine",
            f"{closed.address}/x:1": "unauthorized",
            f"{untrusted.address}/x:1": "the certificate of its registry is not trusted",
            f"{plain.address}/x:1": "its registry has no TLS",
            "Team/Trainer:1": "its name is invalid",
        }
        unreachable = ["127.0.0.1:1/x:1", "registry.invalid/x:1", f"{cut.address}/x:1", f"{silent.address}/x:1"]
        wrong = []
        async with host.stager(pull_silence_s=1.0) as stager:
            for found, meaning in refused.items():
                failed = await host.finish(stager, image_order(found))
                if (failed.reason, f"{found}: {meaning}" in failed.message) != (Reason.IMAGE_FAILED, True):
                    wrong.append((found, failed.reason, failed.message))
            for found in unreachable:
                order = image_order(found)
                stager.begin(order)
                message = await waits_or_ends(stager, order)
                if f"tries again: {found}: registry unreachable" not in message:
                    wrong.append((found, stager.status()[order.run_id].reason, message))
            assert (await host.finish(stager, image_order(host.engine.base_image))).phase == "ready"
        assert wrong == []


async def test_run_whose_registry_stays_away_is_given_back(host: Host) -> None:
    failed = await host.prepare(image_order("127.0.0.1:1/team/trainer:1"), limits=InstallLimits(patience_s=0.1))
    assert (failed.phase, failed.reason) == ("failed", Reason.GIVEN_BACK)
    assert "127.0.0.1:1/team/trainer:1: registry unreachable" in failed.message


async def test_credentials_are_those_of_docker_login_at_that_moment(
    host: Host, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "docker"
    config.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    with RequiresAuth.start() as registry:
        name = offered(registry, host.engine, image)
        async with host.stager() as stager:
            failed = await host.finish(stager, image_order(name))
            assert failed.reason is Reason.IMAGE_FAILED
            assert "unauthorized" in failed.message
            secret = f"{RequiresAuth.USER}:{RequiresAuth.PASSWORD}".encode()
            known = {"auth": base64.b64encode(secret).decode()}
            (config / "config.json").write_text(json.dumps({"auths": {registry.address: known}}))
            assert (await host.finish(stager, image_order(name))).phase == "ready"


async def test_run_that_is_let_go_while_it_pulls_ends_at_once(host: Host, image: str) -> None:
    with Hangs.start() as registry:
        order = image_order(offered(registry, host.engine, image))
        async with host.stager() as stager:
            stager.begin(order)
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await stager.discard(order.run_id)
            assert stager.status() == {}


async def test_packages_are_installed_by_the_runtime_image_for_every_replica(host: Host) -> None:
    uri = host.package(**{"prog/task.py": "print('hello')"})
    order = run_order(uuid.uuid4().hex, CHIEF, pythonModule="prog.task", packageUris=[uri])
    async with host.stager() as stager:
        staged = await host.finish(stager, order)
        assert (staged.phase, staged.python) == ("ready", "/opt/trainyard/environment/bin/python")
        mounts = {staged.packages: {"bind": PACKAGES, "mode": "ro"}}
        command = [staged.python, "-c", "import prog.task, setuptools"]
        printed = host.engine.client().containers.run(staged.images[""], command, volumes=mounts, remove=True)
        assert printed == b"hello\n"
        assert "installing prog-1.0.tar.gz" in host.activities
        await stager.discard(order.run_id)
    assert list((host.root / "staging").iterdir()) == []


@pytest.mark.long
async def test_program_has_what_its_files_declare_in_the_runtime_image(host: Host, tmp_path: Path) -> None:
    setup = "from setuptools import setup; setup(name='{}', version='1', py_modules=['{}'], install_requires={})"
    files: dict[str, str | bytes] = {
        "requirements.txt": "--no-index\n-e ./lib\n",
        "lib/setup.py": setup.format("mylib", "mylib", []),
        "lib/mylib.py": "from pathlib import Path\nprint((Path(__file__).parent / 'data').read_text())\n",
        "lib/data": "hello",
        "setup.py": setup.format("app", "app", []),
        "app.py": "import mylib\n",
    }
    steps: list[dict[str, Any]] = [
        {"what": "requirements", "file": "requirements.txt"},
        {"what": "project", "directory": ".", "dependencies": False},
    ]
    wheel = program_wheel.build(tmp_path / "program", files, steps)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    host.server.packages[sha256] = wheel.read_bytes()
    uri = f"staging://{sha256}/{wheel.name}"
    order = run_order(uuid.uuid4().hex, CHIEF, pythonModule="train", packageUris=[uri])
    async with host.stager() as stager:
        staged = await host.finish(stager, order)
        assert staged.phase == "ready", staged.message
        mounts = {staged.packages: {"bind": PACKAGES, "mode": "ro"}}
        command = [staged.python, "-c", "import app, trainyard_program"]
        printed = host.engine.client().containers.run(staged.images[""], command, volumes=mounts, remove=True)
        assert printed == b"hello\n"
        assert staged.resolved is not None
        assert any(" for the dependencies of requirements.txt in " in note for note in staged.resolved.installed)


async def test_environment_that_is_ready_is_found_by_the_next_agent(host: Host) -> None:
    order = host.packaged()
    first = await host.prepare(order)
    host.server.packages.clear()
    assert await host.prepare(order) == first


async def test_package_that_does_not_build_says_what_pip_said_and_has_no_variable_of_the_agent(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_TOKEN", "secret")
    setup = "import os; raise SystemExit('knows ' + str('secret' in os.environ.values()))"
    order = host.packaged(**{"setup.py": setup})
    failed = await host.prepare(order)
    assert (failed.phase, failed.reason) == ("failed", Reason.PACKAGES_FAILED)
    assert "knows False" in failed.message


@pytest.mark.parametrize(
    ("setup", "limits", "words"),
    [
        ("bytearray(1 << 30)", InstallLimits(memory_bytes=200 * 10**6), "ran out of memory; its limit is 0.2 GB"),
        ("time.sleep(1000)", InstallLimits(seconds=2.0), "took longer than 2 s, the agent's --install-timeout"),
        (
            "open('/tmp/big', 'wb').write(bytes(20 << 20)); time.sleep(1000)",
            InstallLimits(disk_bytes=20 * 10**6),
            "used more than 0.02 GB of disk, the agent's --disk-gb",
        ),
    ],
)
async def test_package_that_installs_beyond_a_limit_fails_with_it(
    host: Host, monkeypatch: pytest.MonkeyPatch, setup: str, limits: InstallLimits, words: str
) -> None:
    monkeypatch.setattr(install_limits, "_MEASURE_S", 0.2)
    order = host.packaged(**{"setup.py": f"import time; {setup}"})
    failed = await host.prepare(order, limits=limits)
    assert failed.reason is Reason.PACKAGES_FAILED
    assert words in failed.message


@pytest.mark.skipif(os.geteuid() != 0, reason="packet filter rules take root")
async def test_package_that_installs_reaches_its_index_and_no_other_service_of_the_machine(host: Host) -> None:
    with socket.create_server(("0.0.0.0", 0)) as index, socket.create_server(("0.0.0.0", 0)) as other:
        ports = {server.getsockname()[1]: name for name, server in (("index", index), ("other", other))}
        setup = (
            "import socket\n"
            "patience_s = {'index': 30, 'other': 1}\n"
            f"for port, name in {ports}.items():\n"
            "    there = 'host.docker.internal', port\n"
            "    try: socket.create_connection(there, patience_s[name]); print(name, 'answers')\n"
            "    except OSError as error: print(name, error)\n"
            "raise SystemExit('tried')"
        )
        order = host.packaged(**{"setup.py": setup})
        allowed = [Endpoint("localhost", index.getsockname()[1])]
        failed = await host.prepare(order, network={"policy": "none", "package_index": allowed})
    assert "index answers" in failed.message
    assert "other timed out" in failed.message


async def test_run_that_is_let_go_while_it_installs_leaves_no_container(host: Host) -> None:
    order = host.packaged(**{"setup.py": "import time; time.sleep(1000)"})
    async with host.stager() as stager:
        stager.begin(order)
        async with asyncio.timeout(60):
            while not host.remaining():
                await asyncio.sleep(0.02)
            await stager.discard(order.run_id)
        assert host.remaining() == []


async def test_runtime_that_is_not_built_or_not_offered_says_so(host: Host) -> None:
    host.runtimes = host.runtime_image("trainyard/not-built:1", dockerfile="/x/Dockerfile")
    failed = await host.prepare(run_order(uuid.uuid4().hex, CHIEF))
    assert failed.reason is Reason.IMAGE_FAILED
    assert failed.message == (
        "trainyard/not-built:1, the image of its runtime version, is not on the agent's machine: "
        "`trainyard runtimes build base` builds it there."
    )
    host.runtimes = Runtimes(host.runtimes.images, {"2.11": RuntimeVersion(cpu="base")})
    failed = await host.prepare(run_order(uuid.uuid4().hex, CHIEF, runtimeVersion="1.15"))
    assert failed.reason is Reason.IMAGE_FAILED
    assert "'1.15' is not a runtime version of this service. Known: 2.11." in failed.message


async def test_job_dir_that_is_a_path_is_made_for_the_user_of_its_containers(host: Host) -> None:
    made = host.root / "jobs" / "a"
    settings = {"job_dirs": JobDirs((host.root / "jobs",), True), "users": ContainerUsers((1234, 5678))}
    staged = await host.prepare(image_order(host.engine.base_image, jobDir=str(made)), **settings)
    assert (staged.job_dir, staged.job_dir_target) == (str(made), str(made))
    assert staged.users == {host.engine.base_image: ProgramUser(1234, 5678, "trainyard-1234")}
    if os.geteuid() == 0:
        assert (made.stat().st_uid, made.stat().st_gid) == (1234, 5678)
    order = image_order(host.engine.base_image, jobDir=str(host.root / "elsewhere"))
    failed = await host.prepare(order, **settings)
    assert failed.reason is Reason.START_FAILED
    assert not (host.root / "elsewhere").exists()
