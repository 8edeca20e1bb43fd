"""The wheel with each of its extras, in an empty environment of each Python that is promised."""

import subprocess
import sys
from pathlib import Path

import pytest

from beds.installed.pythons import VERSIONS, needed_python
from e2e.harness import REPOSITORY, Service, local
from e2e.test_wheel import run, wheel  # noqa: F401 - a fixture

pytestmark = [pytest.mark.e2e, pytest.mark.long]

UV = Path(sys.executable).with_name("uv")  # of the extra `agent`
LOG = "hello from the wheel"


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    return needed_python(request.param)


def programs_of(python: Path, root: Path, wheel: Path, extra: str = "") -> Path:  # noqa: F811
    """The `bin` of a new environment with `trainyard[extra]`, in the versions of constraints.txt."""
    run(UV, "venv", "--quiet", "--python", python, root)
    named = f"trainyard[{extra}] @ {wheel.as_uri()}" if extra else wheel
    run(UV, "pip", "install", "--quiet", "--python", root, "--constraint", REPOSITORY / "constraints.txt", named)
    return root / "bin"


def refused(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_each_extra_is_what_its_program_needs(python: Path, wheel: Path, tmp_path: Path) -> None:  # noqa: F811
    plain = programs_of(python, tmp_path / "plain", wheel)
    assert "training" in run(plain / "trainyard", "jobs", "submit", "--help")
    run(plain / "python", "-c", "from trainyard import Client")
    assert "pip install 'trainyard[server]'" in refused(plain / "python", "-m", "trainyard_server", "--help")

    server = programs_of(python, tmp_path / "server", wheel, "server")
    assert "--token-file" in run(server / "python", "-m", "trainyard_server", "--help")

    agent = programs_of(python, tmp_path / "agent", wheel, "agent")
    assert "--capacity" in run(agent / "python", "-m", "trainyard_agent", "--help")
    run(
        agent / "python",
        "-c",
        "import docker, google.cloud.storage, trainyard_storage.server, trainyard_storage.remote",
    )


def test_local_service_runs_a_job_and_plain_command_line_reads_it(
    python: Path,
    wheel: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    programs = programs_of(python, tmp_path / "local", wheel, "local")
    service = Service(tmp_path / "service", programs)
    service.program(f"print({LOG!r})")
    config = service.config(**local())
    service.ok("up", "--runtime", "process")
    try:
        assert LOG in service.train("first", "--config", str(config), "--package-path", "prog")
        plain = programs_of(python, tmp_path / "plain", wheel)
        service.environment["PATH"] = f"{plain}:{service.environment['PATH']}"
        assert LOG in service.ok("jobs", "stream-logs", "first")
    finally:
        service.environment["PATH"] = f"{programs}:{service.environment['PATH']}"
        service.ok("down")
    assert not service.processes()
