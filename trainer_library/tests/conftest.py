"""Trainer processes, a bucket and small models for the tests."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from gcp_storage_emulator.server import create_server

from support.addresses import free_addresses
from support.lazy import models, tiny

# Most of a short training is compilation: share a cache. Set before JAX is imported.
COMPILATION_CACHE = tempfile.TemporaryDirectory(prefix="trainer-compiled-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILATION_CACHE.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

TEMPLATE = Path(__file__).resolve().parents[1]
PATIENCE = 300  # timeout of a test, in seconds
TRAINER = ("-m", "trainyard_trainer.task")
LAST_LINES = 40  # of a trainer's output, when a test gives up waiting for it

Event = dict[str, Any]


class Trainer:
    """One process of a job, with its output and exit code."""

    def __init__(self, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self._command, self._env = command, env
        self._stdout, self._stderr = log.with_suffix(".stdout"), log.with_suffix(".stderr")
        self.peers: list[Trainer] = [self]  # the processes of its job
        self.start()

    def start(self) -> None:
        """Run the command, as at first or again; its output begins anew."""
        command = [sys.executable, *self._command]
        with self._stdout.open("w") as stdout, self._stderr.open("w") as stderr:
            self._process = subprocess.Popen(command, env=self._env, stdout=stdout, stderr=stderr)

    def wait_for(self, kind: str) -> None:
        """Wait until it has printed such an event."""
        deadline = time.monotonic() + PATIENCE
        while not self.events(kind):
            assert self.code is None or self.events(kind), self.describe_job()
            assert time.monotonic() < deadline, self.describe_job()
            time.sleep(0.05)

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"After {PATIENCE} s a trainer still runs.\n{self.describe_job()}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def describe_job(self) -> str:
        """The last lines of all processes of its job, and the stacks of those that run."""
        return "\n".join(trainer.describe() for trainer in self.peers)

    def describe(self) -> str:
        """Its last lines, and its stacks if it runs."""
        state = f"ended with {self.code}"
        if self.code is None:
            state = "runs"
            if self.events("start"):  # it has a handler of the signal
                self.send(signal.SIGUSR1)
                time.sleep(1)  # a thread that holds the interpreter's lock cannot delay the dump
        lines = [*self.stdout.splitlines()[-LAST_LINES:], "stderr:", *self.stderr.splitlines()[-LAST_LINES:]]
        return "\n    ".join([f"{' '.join(self._command)} (process {self._process.pid}) {state}:", *lines])

    def events(self, kind: str) -> list[Event]:
        lines = [line for line in self.stdout.splitlines(keepends=True) if line.startswith("{")]
        events = [json.loads(line) for line in lines if line.endswith("\n")]
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
        return self._stdout.read_text()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()


class Launcher:
    """Starts trainers with an environment and a command line."""

    def __init__(self, directory: Path, bucket: Bucket) -> None:
        self._directory = directory
        self._started: list[Trainer] = []
        self._bucket = bucket

    def alone(self, *args: str, command: Sequence[str] = TRAINER, **env: str) -> Trainer:
        """One process; keywords are variables of its environment."""
        log = self._directory / str(len(self._started))
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))}
        ours = {
            "PYTHONPATH": str(TEMPLATE),
            "STORAGE_EMULATOR_HOST": self._bucket.endpoint,
            "JAX_COMPILATION_CACHE_DIR": COMPILATION_CACHE.name,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        trainer = Trainer([*command, *args], inherited | ours | env, log)
        self._started.append(trainer)
        return trainer

    def gang(
        self,
        *args: str,
        workers: int = 1,
        evaluators: int = 0,
        commands: Mapping[str, Sequence[str]] | None = None,
        **env: str,
    ) -> Gang:
        """A chief and its workers, and evaluators. `commands`: other ones, by task ("worker-0")."""
        counts = {"chief": 1, "worker": workers, "evaluator": evaluators}
        addresses = iter(free_addresses(1 + workers))
        cluster = {
            kind: list(itertools.islice(addresses, counts[kind])) for kind in ("chief", "worker") if counts[kind]
        }
        trainers = {}
        for kind, index in ((kind, index) for kind, count in counts.items() for index in range(count)):
            task = f"{kind}-{index}"
            tf_config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
            command = (commands or {}).get(task, TRAINER)
            trainers[task] = self.alone(*args, command=command, **env, TF_CONFIG=tf_config)
        return Gang(trainers)

    def kill_all(self) -> None:
        for trainer in self._started:
            trainer.kill()


class Gang:
    """The processes of one job, by task."""

    def __init__(self, trainers: Mapping[str, Trainer]) -> None:
        self._trainers = trainers
        for trainer in self:
            trainer.peers = list(self)

    def __getitem__(self, task: str) -> Trainer:
        return self._trainers[task]

    def __iter__(self) -> Iterator[Trainer]:
        return iter(self._trainers.values())

    def succeed(self) -> None:
        """Wait for all to end, with 0. The first other exit code is the end: an evaluator would wait on."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            codes = [trainer.code for trainer in self]
            if None not in codes or any(codes):
                break
            time.sleep(0.05)
        assert all(trainer.code == 0 for trainer in self), next(iter(self)).describe_job()


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
    """A directory of the test, which runs once with a path and once with a bucket."""
    if request.param == "path":
        return str(tmp_path / "job")
    bucket: Bucket = request.getfixturevalue("bucket")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.endpoint)
    return f"{bucket.url}/{tmp_path.name}/job"


@pytest.fixture(params=["cnn", "resnet50", "transformer"])
def model(request: pytest.FixtureRequest) -> models.Model:
    """A small model of each kind, one after the other."""
    return tiny.MODELS[request.param]()
