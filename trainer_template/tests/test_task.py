"""The trainer as processes: alone, on two devices and as a gang, killed, stopped and resumed, on a path and gs://."""

import json
import os
import shutil
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

    def end(self, code: int) -> str:
        """Wait for its end with this exit code; returns its last line."""
        assert self.process.wait(PATIENCE) == code, self.output
        return self.output.splitlines()[-1]

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
    long = ("--epochs", "20", "--checkpoint-every", "200")
    undisturbed = launcher.alone(*long, "--job-dir", str(tmp_path / "devices"), **TWO_DEVICES)
    flags = (*long, "--job-dir", str(tmp_path / "job"))
    stopped = launcher.gang(*flags)
    stopped[0].wait_for("progress")
    stopped[1].process.send_signal(signal.SIGTERM)
    assert [trainer.process.wait(PATIENCE) for trainer in stopped] == [0, 0], stopped[0].output
    assert stopped[0].events("stopped") == stopped[1].events("stopped") != []
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"checkpoints"}
    assert {trainer.succeed() for trainer in launcher.gang(*flags)} == {undisturbed.succeed()}


def test_divergence_ends_with_its_own_code_and_the_good_checkpoint_goes_on(launcher: Launcher, tmp_path: Path) -> None:
    flags = ("--job-dir", str(tmp_path / "job"), "--epochs")
    launcher.alone(*flags, "1").succeed()
    saved = contents(tmp_path / "job")
    assert "Step 100 diverges" in launcher.alone(*flags, "2", "--learning-rate", "1e30").end(3)
    assert contents(tmp_path / "job") == saved
    assert launcher.alone(*flags, "2", "--learning-rate", "0.001").succeed()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_damaged_checkpoint_is_named_and_the_one_before_it_ends_as_if_undisturbed(
    launcher: Launcher, tmp_path: Path
) -> None:
    flags = ("--job-dir", str(tmp_path / "job"), "--epochs", "1", "--checkpoint-every", "30")
    undisturbed = launcher.alone(*flags).succeed()
    checkpoints = tmp_path / "job" / "checkpoints"
    (checkpoints / "step-99999999").mkdir()
    whole = (checkpoints / "step-00000090").read_bytes()
    for damaged in (whole[:-1], whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:]):
        (checkpoints / "step-00000090").write_bytes(damaged)
        again = launcher.alone(*flags)
        assert again.succeed() == undisturbed
        assert "checkpoints/step-00000090 is damaged" in again.output
        assert again.events("begin") == [{"event": "begin", "step": 60, "steps": 90}]
    assert (checkpoints / "step-00000090").read_bytes() == whole


def test_job_dir_is_of_one_training(launcher: Launcher, tmp_path: Path) -> None:
    flags = ("--job-dir", str(tmp_path / "job"), "--epochs", "1")
    launcher.alone(*flags).succeed()
    saved = contents(tmp_path / "job")
    assert (
        launcher.alone(*flags, "--seed", "1").end(2) == "--job-dir has a training with --seed 0, not 1: give another."
    )
    assert "global batch size 16, not 32" in launcher.alone(*flags, "--batch-size", "16", **TWO_DEVICES).end(2)
    narrow = edited(tmp_path, ("nn.Dense(128,", "nn.Dense(64,"))
    assert "with ['params']['Dense_1']['kernel'] (128, 10), not (64, 10): give" in launcher.alone(
        *flags, PYTHONPATH=narrow
    ).end(2)
    assert contents(tmp_path / "job") == saved


def edited(directory: Path, *edits: tuple[str, str]) -> str:
    """A directory with a copy of the template in which these texts are replaced."""
    copy = Path(shutil.copytree(TEMPLATE / "trainer", directory / "edited" / "trainer")) / "task.py"
    text = copy.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    copy.write_text(text)
    return str(copy.parents[1])


@pytest.mark.parametrize("place", ["{tmp_path}/job", "gs://bucket/two"])
def test_one_of_two_on_a_job_dir_ends_and_harms_nothing(launcher: Launcher, tmp_path: Path, place: str) -> None:
    flags = ("--job-dir", place.format(tmp_path=tmp_path), "--epochs", "1000", "--checkpoint-every", "20")
    first = launcher.alone(*flags)
    first.wait_for("checkpoint")
    second = launcher.alone(*flags)
    while None not in (codes := [first.process.poll(), second.process.poll()]) or codes == [None, None]:
        assert any(code is None for code in codes), first.output + second.output
        time.sleep(0.1)
    ended, other = (first, second) if codes[1] is None else (second, first)
    assert "nother process trains" in ended.end(2)
    other.process.send_signal(signal.SIGTERM)
    assert json.loads(other.end(0))["event"] == "stopped"


def test_order_of_a_million_examples_is_drawn_once_an_epoch(launcher: Launcher, tmp_path: Path) -> None:
    million = edited(
        tmp_path,
        (
            "    digits = sklearn",
            "    many = np.zeros((1_000_000, 1, 1, 1), np.float32), np.zeros(1_000_000, np.int32)\n"
            "    return many, (many[0][:10], many[1][:10])\n    digits = sklearn",
        ),
        ("np.random.default_rng([seed", "print('drawn') or np.random.default_rng([seed"),
    )
    flags = ("--epochs", "2", "--batch-size", "20000", "--job-dir", str(tmp_path / "job"))
    trainer = launcher.alone(*flags, PYTHONPATH=million)
    trainer.succeed()
    assert len(trainer.events("progress")) == 10
    assert trainer.output.count("drawn") == 2


def test_network_with_batch_norm_dropout_and_bfloat16_needs_no_other_loop(launcher: Launcher, tmp_path: Path) -> None:
    network = edited(
        tmp_path,
        (
            "        x_BF = nn.relu(",
            "        x_BHWC = nn.BatchNorm(not train, dtype=self.dtype)(x_BHWC)\n        x_BF = nn.relu(",
        ),
        (
            "        return jnp.asarray(nn.Dense(10, dtype=self.dtype)(x_BF)",
            "        x_BF = nn.Dropout(0.1, deterministic=not train)(x_BF)\n"
            "        return jnp.asarray(nn.Dense(10, dtype=self.dtype, param_dtype=self.dtype)(x_BF)",
        ),
    )
    flags = (*SHORT, "--dtype", "bfloat16", "--job-dir")
    environment = {"PYTHONPATH": network, **TWO_DEVICES}
    undisturbed = launcher.alone(*flags, str(tmp_path / "undisturbed"), **environment)
    stopped = launcher.alone(*flags, str(tmp_path / "stopped"), **environment)
    stopped.wait_for("progress")
    stopped.process.send_signal(signal.SIGTERM)
    stopped.end(0)
    assert launcher.alone(*flags, str(tmp_path / "stopped"), **environment).succeed() == undisturbed.succeed()
    assert undisturbed.events("evaluation")[-1]["held_out_accuracy"] >= 0.9
    predicting = launcher.alone(*flags, str(tmp_path / "stopped"), "--predict", "3", **environment)
    assert predicting.end(0).startswith("held-out digit 2: predicted ")


def test_flags_that_cannot_work_are_refused_before_anything_is_written(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = "--job-dir s3://bucket/job|--job-dir ~/job|--batch-size 0|--epochs 0|--learning-rate nan|--seed -1"
    for trainer in [launcher.alone(*flags.split()) for flags in table.split("|")]:
        assert "must" in trainer.end(2)
    assert not list(tmp_path.glob("*/"))


def test_job_dir_that_cannot_be_written_is_refused_at_the_start(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    places = str(tmp_path / "file"), "gs://no-such-bucket/job"
    for trainer in [launcher.alone("--job-dir", place) for place in places]:
        assert trainer.end(2).startswith("--job-dir cannot be used: ")
        assert not trainer.events("begin")
