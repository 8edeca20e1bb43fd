"""`trainyard build` and `--build`, with a scripted engine."""

import tarfile
from pathlib import Path

import docker
import pytest

from trainyard_cli.commands import tree
from trainyard_cli.main import run
from trainyard_cli.runtimes import images
from unit.cli.commands.images.test_runtimes import ScriptedEngine

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


def test_build_sends_those_files_once_and_prints_the_image(
    project: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
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
