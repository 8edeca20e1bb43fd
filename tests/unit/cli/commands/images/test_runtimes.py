"""`trainyard runtimes`, `trainyard build` and `--build`, with a scripted engine."""

import io
import json
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
import requests
from docker.errors import APIError, DockerException, ImageNotFound

from trainyard_cli.commands import tree
from trainyard_cli.commands.images import runtimes as runtime_commands
from trainyard_cli.main import run
from trainyard_cli.runtimes import images
from trainyard_cli.runtimes import images as runtimes
from trainyard_protocol.job.runtimes import load_runtimes
from unit.cli.terminal import Terminal

ROOT = Path(__file__).parents[5]
CPU = "trainyard/runtime-jax-cpu:0.2"

TENSORFLOW = ", ".join([*(f"1.{minor}" for minor in range(16)), *(f"2.{minor}" for minor in range(1, 12)), "2.15"])

FINE = (
    {"stream": "Step 1/2 : FROM ${BASE_IMAGE}"},
    {"status": "Downloading", "id": "0a1b", "progress": "[==>  ]", "progressDetail": {}},
    {"stream": "\n ---> 0a1b\n"},
    {"stream": "Step 2/2 : RUN  set -eu; \tpython3 -m pip install --requirement requirements.txt of very many words"},
    {"stream": "Collecting jax\n"},
    {"stream": "Successfully built 0a1b2c\n"},
)


class ScriptedEngine:
    """Docker's client, as far as we use it. It builds as the script says, and then has the image."""

    def __init__(self, images: Iterable[str] = (), script: Iterable[Any] = FINE) -> None:
        self.sizes = dict.fromkeys(images, 1_230_000_000)
        self.script = list(script)
        self.builds: list[dict[str, Any]] = []
        self.closed = False
        self.images = SimpleNamespace(get=self._get)
        self.api = SimpleNamespace(build=self._build)

    def close(self) -> None:
        self.closed = True

    def _get(self, name: str) -> Any:
        if name not in self.sizes:
            raise ImageNotFound(f"No such image: {name}")
        return SimpleNamespace(attrs={"Size": self.sizes[name]})

    def _build(self, **arguments: Any) -> Iterator[Any]:
        self.builds.append(arguments | {"fileobj": io.BytesIO(arguments["fileobj"].read())})
        for word in self.script:
            if isinstance(word, Exception):
                raise word
            yield word
        self.sizes[arguments["tag"]] = 1_230_000_000

    def files(self, build: int = 0) -> dict[str, str]:
        """Contents of a build context."""
        with tarfile.open(fileobj=io.BytesIO(self.builds[build]["fileobj"].getvalue())) as tar:
            return {entry.name: (tar.extractfile(entry) or io.BytesIO()).read().decode() for entry in tar}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
    for name in ("DOCKER_HOST", *runtimes.PROXY_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def use(monkeypatch: pytest.MonkeyPatch, engine: ScriptedEngine | Exception) -> None:
    def from_env() -> Any:
        if isinstance(engine, Exception):
            raise engine
        return engine

    monkeypatch.setattr(docker, "from_env", from_env)


def trainyard(*words: str) -> int:
    return run(tree.trainyard, "trainyard", ["runtimes", *words])


def site(tmp_path: Path, text: str) -> str:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    return str(path)


def built_by_name(name: str) -> list[str]:
    return [name, f"trainyard/runtime-{name}:0.2", f"no: trainyard runtimes build {name}"]


def test_list_shows_each_version_with_its_images_and_which_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine([CPU])
    use(monkeypatch, engine)
    table = site(tmp_path, 'images: {mine: {image: "torch:2"}}\nversions: {"3.0": {cpu: mine}}')
    assert trainyard("list", "--runtimes", table) == 0
    printed = capsys.readouterr()
    assert [re.split("  +", line) for line in printed.out.splitlines()] == [
        ["VERSION", "DEVICES", "NAME", "IMAGE", "HERE"],
        ["*", "CPU", "jax-cpu", CPU, "1.23 GB"],
        ["*", "GPU", "jax-cuda", "trainyard/runtime-jax-cuda:0.2", "no: trainyard runtimes build jax-cuda"],
        [TENSORFLOW, "CPU", *built_by_name("tensorflow-cpu")],
        [TENSORFLOW, "GPU", *built_by_name("tensorflow-cuda")],
        ["torch", "any", *built_by_name("torch")],
        ["3.0", "any", "mine", "torch:2", "no: pulled when needed"],
    ]
    assert printed.err == ""
    assert engine.closed
    assert trainyard("list", "-o", "json") == 0
    cpu, cuda, *_ = json.loads(capsys.readouterr().out)
    row = {"version": "*", "devices": "CPU", "name": "jax-cpu", "image": CPU}
    assert cpu == row | {"here": True, "size": 1_230_000_000}
    assert (cuda["here"], cuda["size"]) == (False, None)


def test_list_without_an_engine_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use(monkeypatch, DockerException("Error while fetching server API version: refused"))
    assert trainyard("list", "--format", "value(name,here)") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("jax-cpu\t\njax-cuda\t\ntensorflow-cpu\t\n")
    assert printed.err.startswith(
        "Cannot tell which images this machine has: No container engine answers at unix:///var/run/docker.sock (Error"
    )


def test_build_is_by_default_without_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine()
    use(monkeypatch, engine)
    assert trainyard("build") == 0
    (build,) = engine.builds
    assert build["tag"] == CPU
    assert build["buildargs"] == {"BASE_IMAGE": "python:3.11-slim"}
    assert (build["rm"], build["forcerm"], build["timeout"]) == (True, True, None)
    printed = capsys.readouterr()
    assert re.fullmatch(rf"Built {CPU}: 1\.23 GB, in \d+ s\.\n", printed.out)
    assert printed.err.splitlines() == [
        "Building jax-cpu on python:3.11-slim.",
        "jax-cpu  1/2  FROM ${BASE_IMAGE}",
        "jax-cpu  2/2  RUN set -eu; python3 -m pip install --requirement requirements.txt ...",
        "Package jobs run in it only with `packageJobs: container` in a runtimes file, or with --runtime docker; "
        "else as processes, as before.",
    ]


def test_build_says_which_jobs_run_in_the_image(tmp_path: Path) -> None:
    rows = {
        ("'*': {cpu: jax-cpu}", "container"): "Package jobs run in it.",
        ("'3.0': {cpu: jax-cpu}, '2.11': {cpu: jax-cuda, gpu: jax-cpu}", "process"): (
            "Package jobs with runtimeVersion 2.11 or 3.0 run in it from now on. Other package jobs run in it "
            "only with `packageJobs: container` in a runtimes file, or with --runtime docker; else as processes, as "
            "before."
        ),
        ("'*': {cpu: jax-cuda}, '3.0': {cpu: jax-cpu}", "container"): (
            "Package jobs with runtimeVersion 3.0 run in it from now on."
        ),
    }
    for (versions, package_jobs), expected in rows.items():
        table = site(tmp_path, f"versions: {{{versions}}}\npackageJobs: {package_jobs}\n")
        assert runtimes.use_of(load_runtimes(Path(table)), "jax-cpu") == expected


def test_build_context_is_the_dockerfile_and_what_it_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_CERT", raising=False)
    engine = ScriptedEngine()
    use(monkeypatch, engine)
    assert trainyard("build", "jax-cpu", "jax-cuda", "jax-cpu", "torch") == 0
    torch = "trainyard/runtime-torch:0.2"
    assert [build["tag"] for build in engine.builds] == [CPU, "trainyard/runtime-jax-cuda:0.2", torch]
    cpu, cuda, framework = engine.files(0), engine.files(1), engine.files(2)
    assert framework["requirements.txt"].splitlines()[:3] == ["pip", "setuptools", "torch==2.13.0"]
    assert framework["constraints.txt"] == ""
    assert cpu["Dockerfile"] == (ROOT / "configs/runtimes/python.Dockerfile").read_text()
    assert cpu["constraints.txt"] == (ROOT / "constraints.txt").read_text()
    assert cpu["ca-bundle.crt"] == ""
    assert "jax[cuda12]" not in cpu["requirements.txt"].splitlines()
    assert cuda["requirements.txt"].splitlines()[-1] == "jax[cuda12]"


def test_build_accepts_a_base_image_arguments_and_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = ScriptedEngine()
    use(monkeypatch, engine)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:3128")  # no container reaches it
    certificates = tmp_path / "ca.pem"
    certificates.write_text("PEM")
    assert (
        trainyard(
            *("build", "--base-image", "mine:1", "--ca-bundle", str(certificates)),
            *("--build-arg", "PIP_INDEX_URL=https://example.com/?a=b", "--build-arg", "EMPTY="),
        )
        == 0
    )
    assert engine.builds[0]["buildargs"] == {
        "BASE_IMAGE": "mine:1",
        "HTTPS_PROXY": "http://proxy.example.com:3128",
        "PIP_INDEX_URL": "https://example.com/?a=b",
        "EMPTY": "",
    }
    assert engine.files()["ca-bundle.crt"] == "PEM"


def test_build_wrong_usage_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        "--build-arg novalue": "must look like NAME=VALUE, not 'novalue'.",
        "--build-arg a%b=c": "must look like NAME=VALUE",
        "--ca-bundle /nowhere": "'/nowhere' does not exist",
        "--runtimes /nowhere": "'/nowhere' does not exist",
    }
    for words, message in rows.items():
        assert trainyard("build", *words.split()) == 2
        assert message in capsys.readouterr().err


def test_build_without_a_dockerfile_asks_no_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = "images: {t: {image: 'torch:2', %s}}"
    known = "jax-cpu, jax-cuda, tensorflow-cpu, tensorflow-cuda, torch"
    rows = {
        ("{}", "jax"): f"Unknown runtime image 'jax'; known: {known}.",
        ("images: {t: {image: 'torch:2'}}", "t"): (
            "The runtime image t cannot be built: it has no dockerfile. torch:2 is pulled"
        ),
        (mine % "dockerfile: Dockerfile", "t"): ("The runtime image t has no baseImage. Give one with --base-image."),
        (mine % "dockerfile: missing, baseImage: b", "t"): ("missing: cannot be read: No such file or directory."),
    }
    for (table, name), message in rows.items():
        assert trainyard("build", name, "--runtimes", site(tmp_path, table)) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def failing(*words: Any) -> ScriptedEngine:
    return ScriptedEngine(script=words)


def fetching(cause: Exception) -> DockerException:
    """Fail as the SDK does that did not reach the engine."""
    error = DockerException(f"Error while fetching server API version: {cause}")
    error.__cause__ = requests.ConnectionError("Connection aborted.", cause)
    return error


NO_ENGINE = "No container engine answers at unix:///var/run/docker.sock"
FAILURES: dict[str, tuple[ScriptedEngine | Exception, str]] = {
    "no socket": (fetching(FileNotFoundError(2, "No such file or directory")),
     f"{NO_ENGINE} (No such file or directory). Start Docker, or set DOCKER_HOST to another engine."),
    "a socket of others": (fetching(PermissionError(13, "Permission denied")),
     "Permission denied for the container engine at unix:///var/run/docker.sock. Join the group"),
    "no base image": (
        failing({"stream": "Step 1/8 : FROM ${BASE_IMAGE}\n"}, {"error": "dial tcp: no such host."}),
        "The base image base:1 of jax-cpu is not available: dial tcp: no such host. Load it into the engine "
        "(docker pull, docker load), or give another with --base-image.\n",
    ),
    "a certificate": (failing({"stream": "Step 1/1 : RUN x"}, {"stream": "[SSL: CERTIFICATE_VERIFY_FAILED]"},
     {"error": "no"}), "with --ca-bundle"),
    "a Dockerfile that is none": (failing(APIError("bad request",
     explanation="dockerfile parse error line 3: unknown instruction: BAD")),
     "jax-cpu was not built: dockerfile parse error line 3: unknown instruction: BAD."),
    "a lost connection": (failing(requests.ConnectionError("Aborted.",
     ConnectionResetError(104, "Connection reset by peer"))), f"{NO_ENGINE} (Connection reset by peer)."),
    "no image": (failing({"stream": "Step 1/2 : ARG A"}),
     "was not built: step 1 of 2, ARG A, failed: the engine returned no image"),
}  # fmt: skip


def test_build_fails_with_an_error_that_helps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for name, (engine, message) in FAILURES.items():
        if isinstance(engine, ScriptedEngine):
            engine.sizes[CPU] = 1  # an older image is no success
        use(monkeypatch, engine)
        code = trainyard("build", "--base-image", "base:1")
        error = capsys.readouterr().err.partition("ERROR: ")[2]
        if code != 1 or message not in error:
            wrong.append(f"{name}: {code} {error}")
    assert not wrong, "\n".join(wrong)


def test_build_without_dockers_sdk_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    assert trainyard("build") == 1
    assert "pip install 'trainyard[agent]'" in capsys.readouterr().err


def test_progress_on_a_terminal_keeps_the_steps_and_lets_lines_pass() -> None:
    out = Terminal()
    with runtime_commands.progress_on(out, "jax-cpu") as progress:
        progress.step(1, 2, "RUN [bold]")
        progress.line("[red]" + "x" * 500)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).splitlines()
    assert [line for line in plain if line.startswith("jax-cpu  1/2  RUN [bold]")]


DOCKERFILE = "FROM python:3.12\nCOPY . /app\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "My digits"
    (directory / "data").mkdir(parents=True)
    (directory / "Dockerfile").write_text(DOCKERFILE)
    (directory / "train.py").write_text("print(1)\n")
    (directory / "data" / "big.bin").write_text("0")
    (directory / "data" / "labels.txt").write_text("a")
    (directory / ".dockerignore").write_text("# not in the image\ndata/*\n!data/labels.txt\nDockerfile\n")
    monkeypatch.chdir(tmp_path)
    return directory


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    scripted = ScriptedEngine()
    monkeypatch.setattr(docker, "from_env", lambda: scripted)
    return scripted


def test_image_is_named_by_the_content_that_dockerignore_leaves(project: Path) -> None:
    def image() -> str:
        return images.project(project).image

    first = image()
    assert first.startswith("trainyard/my-digits:")
    (project / "data" / "big.bin").write_text("another")
    (project / "train.py").touch()
    assert image() == first
    for change in ("train.py", "Dockerfile", "data/labels.txt"):
        (project / change).write_text("changed")
        assert image() != first
        first = image()
    (project / "train.py").chmod(0o755)
    assert image() != first


def test_build_sends_files_once(project: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    image = images.project(project).image
    for expected in (f"Built {image}: 1.23 GB", f"{image} is built: My digits has not changed since."):
        assert run(tree.trainyard, "trainyard", ["build", "My digits"]) == 0
        printed = capsys.readouterr()
        assert printed.out == f"{image}\n"
        assert expected in printed.err
        assert f"trainyard jobs submit training --master-image-uri {image}" in printed.err
    (sent,) = engine.builds
    with tarfile.open(fileobj=sent["fileobj"]) as tar:
        assert {entry.name for entry in tar if entry.isfile()} == {
            "Dockerfile",
            ".dockerignore",
            "train.py",
            "data/labels.txt",
        }
    assert run(tree.trainyard, "trainyard", ["build", "My digits", "--tag", "team/digits:1"]) == 0
    assert engine.builds[1]["tag"] == capsys.readouterr().out.strip() == "team/digits:1"


def test_build_that_fails_says_where_and_what_to_do(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failure(*script: object) -> str:
        monkeypatch.setattr(docker, "from_env", lambda: ScriptedEngine(script=script))
        assert run(tree.trainyard, "trainyard", ["build", "My digits"]) == 1
        return capsys.readouterr().err

    step = {"stream": "Step 2/2 : RUN python train.py"}
    message = failure(step, {"stream": "no such data\n"}, {"error": "The command returned a non-zero code: 3"})
    assert "My digits was not built: step 2 of 2, RUN python train.py, failed with exit code 3." in message
    assert "Last lines of its output:\n    no such data\n" in message
    message = failure({"stream": "Step 1/2 : FROM python:3.12"}, {"error": "pull access denied"})
    assert "The base image python:3.12 of My digits is not available: pull access denied." in message
    assert "or name another in FROM." in message
    (project / "Dockerfile").unlink()
    assert "My digits has no Dockerfile. Give the directory of one" in failure()
