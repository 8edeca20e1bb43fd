"""The trainer as processes: alone, on two devices and as a gang, killed, stopped and resumed, on a path and gs://."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gcp_storage_emulator.server import create_server

TEMPLATE = Path(__file__).resolve().parents[1]
PATIENCE = 300  # seconds
SHORT = ("--epochs", "2", "--checkpoint-every", "20")
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


class Trainer:
    """A process of the trainer, with its lines."""

    def __init__(self, log: Path, *flags: str, **environment: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
        cache = {"JAX_COMPILATION_CACHE_DIR": str(log.parent / "xla"), "PYTHONPATH": str(TEMPLATE)}
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainer.task", *flags],
                env={**inherited, **cache, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = [line for line in self.output.splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")]
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def wait_for(self, kind: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.events(kind):
            assert self.process.poll() is None or self.events(kind), self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def succeed(self) -> str:
        """Wait for its end; returns the hash of the parameters."""
        assert self.process.wait(PATIENCE) == 0, self.output
        (done,) = self.events("done")
        return str(done["parameters_sha256"])

    @property
    def output(self) -> str:
        return self._log.read_text()


class Launcher:
    def __init__(self, directory: Path, emulator: str) -> None:
        self._directory, self._emulator = directory, emulator
        self.started: list[Trainer] = []

    def alone(self, *flags: str, **environment: str) -> Trainer:
        log = self._directory / f"{len(self.started)}.log"
        self.started.append(Trainer(log, *flags, STORAGE_EMULATOR_HOST=self._emulator, **environment))
        return self.started[-1]

    def gang(self, *flags: str) -> list[Trainer]:
        """A chief and a worker."""
        cluster = {"chief": [f"127.0.0.1:{free_port()}"], "worker": ["127.0.0.1:1"]}
        tasks = [{"type": kind, "index": 0} for kind in ("chief", "worker")]
        return [self.alone(*flags, TF_CONFIG=json.dumps({"cluster": cluster, "task": task})) for task in tasks]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    """The address of a server with gs://bucket."""
    port = free_port()
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def launcher(tmp_path: Path, emulator: str) -> Iterator[Launcher]:
    made = Launcher(tmp_path, emulator)
    yield made
    for trainer in made.started:
        trainer.process.kill()
        trainer.process.wait()


def test_alone_learns_the_digits_and_the_model_predicts_them(launcher: Launcher, tmp_path: Path) -> None:
    flags = ("--job-dir", str(tmp_path / "job"))
    trainer = launcher.alone(*flags, "--epochs", "5")
    trainer.succeed()
    assert trainer.events("evaluation")[-1]["held_out_accuracy"] >= 0.97
    assert sorted(path.name for path in tmp_path.glob("job/*/*")) == [
        "parameters.safetensors", "step-00000360", "step-00000450"
    ]  # fmt: skip
    predicting = launcher.alone(*flags, "--predict", "10")
    assert predicting.process.wait(PATIENCE) == 0, predicting.output
    pairs = [line.split("predicted ")[1].split(", is ") for line in predicting.output.splitlines()]
    assert len(pairs) == 10
    assert sum(predicted == label for predicted, label in pairs) >= 9


def test_gang_on_gs_that_is_killed_ends_as_two_devices_that_are_left_alone(
    launcher: Launcher, tmp_path: Path, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = launcher.alone(*SHORT, "--job-dir", str(tmp_path / "devices"), **TWO_DEVICES)
    flags = (*SHORT, "--job-dir", "gs://bucket/job")
    chief, worker = launcher.gang(*flags)
    chief.wait_for("checkpoint")
    worker.process.kill()
    assert chief.process.wait(PATIENCE) != 0  # it ends by itself, so that the job is started again
    again = launcher.gang(*flags)
    assert {trainer.succeed() for trainer in again} == {undisturbed.succeed()}
    assert again[0].events("begin")[0]["step"] in range(20, 90, 20)
    from google.cloud import storage

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
    assert sorted(blob.name for blob in storage.Client().list_blobs("bucket")) == [
        "job/checkpoints/step-00000080", "job/checkpoints/step-00000090", "job/model/parameters.safetensors"
    ]  # fmt: skip


def test_sigterm_to_a_worker_saves_and_the_same_command_ends_as_if_undisturbed(
    launcher: Launcher, tmp_path: Path
) -> None:
    undisturbed = launcher.alone(*SHORT, "--job-dir", str(tmp_path / "devices"), **TWO_DEVICES)
    flags = (*SHORT, "--job-dir", str(tmp_path / "job"))
    stopped = launcher.gang(*flags)
    stopped[0].wait_for("progress")
    stopped[1].process.send_signal(signal.SIGTERM)
    assert [trainer.process.wait(PATIENCE) for trainer in stopped] == [0, 0], stopped[0].output
    assert stopped[0].events("stopped") == stopped[1].events("stopped") != []
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"checkpoints"}
    assert {trainer.succeed() for trainer in launcher.gang(*flags)} == {undisturbed.succeed()}
