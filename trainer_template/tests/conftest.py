"""Real processes for the tests, and a bucket."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from gcp_storage_emulator.server import create_server

TEMPLATE = Path(__file__).resolve().parents[1]
PATIENCE = 300  # seconds until something that hangs fails its test

Event = dict[str, Any]


class Trainer:
    """One process of a job: what it prints, and how it ends."""

    def __init__(self, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self._log = log
        self._lines: list[str] = []
        self._closed = False
        self._changed = threading.Condition()
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *command], env=env, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, kind: str) -> None:
        """Until it has printed such an event."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.events(kind), PATIENCE)
        assert self.events(kind), self.stderr

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit code."""
        code = self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def events(self, kind: str) -> list[Event]:
        events = [json.loads(line) for line in list(self._lines) if line.startswith("{")]
        return [event for event in events if event["event"] == kind]

    @property
    def parameters_sha256(self) -> str:
        (done,) = self.events("done")
        return str(done["parameters_sha256"])

    @property
    def held_out_accuracy(self) -> float:
        return float(self.events("evaluation")[-1]["held_out_accuracy"])

    @property
    def stdout(self) -> str:
        return "".join(self._lines)

    @property
    def stderr(self) -> str:
        return self._log.read_text()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Launcher:
    """Starts trainers as a service would: with an environment and a command line."""

    def __init__(self, directory: Path, bucket: "Bucket") -> None:
        self._directory = directory
        self._started: list[Trainer] = []
        self._bucket = bucket

    def alone(self, *args: str, command: Sequence[str] = ("-m", "trainer.task"), **env: str) -> Trainer:
        """One process; keywords are variables of its environment."""
        log = self._directory / f"{len(self._started)}.log"
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))}
        ours = {
            "PYTHONPATH": str(TEMPLATE),
            "STORAGE_EMULATOR_HOST": self._bucket.endpoint,
            "JAX_COMPILATION_CACHE_DIR": str(
                self._directory / "compiled"
            ),  # most of a short run is compilation
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        trainer = Trainer([*command, *args], kept | ours | env, log)
        self._started.append(trainer)
        return trainer

    def pair(self, *args: str, worker: Sequence[str] = ("-m", "trainer.task")) -> tuple[Trainer, Trainer]:
        """A chief and a worker; the worker's command may be another."""
        chief_address, worker_address = free_addresses(2)
        cluster = {"chief": [chief_address], "worker": [worker_address]}

        def tf_config(task_type: str) -> str:
            return json.dumps({"cluster": cluster, "task": {"type": task_type, "index": 0}})

        return (
            self.alone(*args, TF_CONFIG=tf_config("chief")),
            self.alone(*args, TF_CONFIG=tf_config("worker"), command=worker),
        )

    def kill_all(self) -> None:
        for trainer in self._started:
            trainer.kill()


class Bucket:
    """gs://bucket on an emulator of our own."""

    def __init__(self) -> None:
        (address,) = free_addresses(1)
        self.endpoint = f"http://{address}"
        self.url = "gs://bucket"
        host, _, port = address.partition(":")
        self._server = create_server(host, int(port), in_memory=True, default_bucket="bucket")
        self._server.start()

    def close(self) -> None:
        self._server.stop()


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    emulated = Bucket()
    yield emulated
    emulated.close()


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory, bucket: Bucket) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("logs"), bucket)
    yield started
    started.kill_all()


@pytest.fixture(params=["path", "gs"])
def job_dir(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory of its own for a test, which runs once with a path and once with a bucket."""
    if request.param == "path":
        return str(tmp_path / "job")
    bucket: Bucket = request.getfixturevalue("bucket")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.endpoint)
    return f"{bucket.url}/{tmp_path.name}/job"
