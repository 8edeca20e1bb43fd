"""The wheels alone on a fresh Debian without a network: the first job in two commands, and the command line of another
machine."""

import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from beds.engines import Engine
from e2e.harness import REPOSITORY
from e2e.test_wheel import run, wheel  # noqa: F401 - a fixture

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.containers]

PROGRAM = """\
import json
for step in range(1, 6):
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
print("trained")
"""
CURVES = """\
import urllib.request
token = open("/root/.local/state/trainyard/token").read().strip()
url = "http://127.0.0.1:8470/trainyard/v1/projects/local/jobs/first/metrics"
print(urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})).read().decode())
"""
SUBMIT = ("jobs", "submit", "training", "first", "--package-path", "train.py", "--stream-logs")


class Box:
    """A fresh Debian with Python, and the wheels at /wheels."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def run(self, *words: str) -> tuple[int, str]:
        environment = {"PATH": "/opt/trainyard/bin:/usr/local/bin:/usr/bin:/bin"}
        done = self._container.exec_run([*words], workdir="/root", environment=environment)
        return done.exit_code, done.output.decode()

    def ok(self, *words: str) -> str:
        code, output = self.run(*words)
        assert code == 0, output
        return output

    def write(self, path: str, content: str) -> None:
        self.ok(
            "python3", "-c", "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])", path, content
        )

    def install(self, what: str) -> None:
        self.ok("python3", "-m", "venv", "/opt/trainyard")
        self.ok("/opt/trainyard/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/wheels", what)

    def address(self, network: str) -> str:
        self._container.reload()
        return str(self._container.attrs["NetworkSettings"]["Networks"][network]["IPAddress"])


@pytest.fixture(scope="module")
def wheelhouse(wheel: Path, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The wheels of `trainyard[local]` for the Python of the base image."""
    directory = tmp_path_factory.mktemp("wheels")
    version = engine.client().containers.run(
        engine.base_image, ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], remove=True
    )
    flags = ("--quiet", "--dest", directory, "--only-binary", ":all:", "--python-version", version.decode().strip())
    constraints = ("--constraint", REPOSITORY / "constraints.txt")
    run(sys.executable, "-m", "pip", "download", *flags, *constraints, f"trainyard[local] @ {wheel.as_uri()}")
    return directory


@contextmanager
def box(engine: Engine, network: str, wheels: Path) -> Iterator[Box]:
    mounted = {str(wheels): {"bind": "/wheels", "mode": "ro"}}
    container = engine.client().containers.run(
        engine.base_image, ["sleep", "infinity"], detach=True, init=True, network=network, volumes=mounted
    )
    try:
        yield Box(container)
    finally:
        container.remove(force=True, v=True)


@pytest.fixture
def network(engine: Engine) -> Iterator[str]:
    """It leads nowhere outside."""
    made = engine.client().networks.create(f"trainyard-test-{uuid.uuid4().hex[:8]}", internal=True)
    try:
        yield str(made.name)
    finally:
        made.remove()


def test_first_job_takes_two_commands_and_a_second_machine_the_command_line_alone(
    engine: Engine, network: str, wheelhouse: Path
) -> None:
    with box(engine, network, wheelhouse) as first, box(engine, network, wheelhouse) as laptop:
        first.write("/root/train.py", PROGRAM)
        first.install("trainyard[local]")
        assert "trained" in first.ok(*SUBMIT)
        curves = json.loads(first.ok("python3", "-c", CURVES))
        (loss,) = (metric for metric in curves["metrics"] if metric["name"] == "loss")
        steps = [*range(1, 6)]
        assert (loss["steps"], loss["values"]) == (steps, [1 / step for step in steps])

        address = first.address(network)
        first.ok("trainyard", "down")
        first.ok("trainyard", "up", "--listen", address)
        state = "/root/.local/state/trainyard"
        laptop.install("trainyard")
        laptop.write("/root/ca.pem", first.ok("cat", f"{state}/server/ca.pem"))
        laptop.write("/root/token", first.ok("cat", f"{state}/token"))
        laptop.write("/root/train.py", PROGRAM)
        url = f"https://{address}:8470"
        laptop.ok("trainyard", "login", url, "--ca-file", "ca.pem", "--token-file", "token")
        assert "trained" in laptop.ok(*SUBMIT[:3], "second", *SUBMIT[4:])
        assert "second" in first.ok("jobs", "list")
        code, refused = laptop.run(*SUBMIT[:3], "third", *SUBMIT[4:], "--staging-bucket", "gs://bucket")
        assert (code, "pip install 'trainyard[gcs]'" in refused) == (1, True)
        first.ok("trainyard", "down")
