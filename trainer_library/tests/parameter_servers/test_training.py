"""Training with parameter servers, in real processes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import safetensors.numpy

from support.lazy import strategy, tiny, training
from trainyard_trainer.arguments import parse_arguments
from trainyard_trainer.processes.cluster import ClusterError, ClusterSpec

if TYPE_CHECKING:
    from conftest import Launcher


def test_two_servers_and_three_workers_learn_the_digits_while_a_worker_is_restarted(
    launcher: Launcher, tmp_path: Path
) -> None:
    gang = launcher.gang("--job-dir", str(tmp_path), "--epochs", "15", workers=3, ps=2)
    gang["worker-1"].wait_for("progress")
    gang["worker-1"].kill()
    others = [gang["chief-0"], gang["worker-0"], gang["worker-2"]]
    for trainer in others:  # else they would finish before it has restarted
        trainer.send(signal.SIGSTOP)
    gang["worker-1"].start()
    gang["worker-1"].wait_for("progress")
    for trainer in others:
        trainer.send(signal.SIGCONT)
    gang.succeed()
    chief = gang["chief-0"]
    assert chief.held_out_accuracy >= 0.95
    assert all(worker.events("done") for worker in (gang[f"worker-{index}"] for index in range(3)))

    steps = chief.events("done")[0]["step"]
    assert steps >= 15 * 90
    for server in (gang["ps-0"], gang["ps-1"]):
        updates = server.events("updates")
        assert updates[-1]["step"] >= steps - 1  # one may lack an update of the worker that was killed
        assert max(line["staleness_max"] for line in updates) > 0  # workers do not wait
    for line in gang["worker-0"].events("progress"):
        assert line["staleness_max"] >= line["staleness_mean"] >= 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "logs", "model"]


def test_sigterm_to_all_saves_and_the_same_command_resumes_with_another_number_of_servers(
    launcher: Launcher, tmp_path: Path
) -> None:
    flags = ("--job-dir", str(tmp_path), "--epochs", "4", "--log-every", "1")
    gang = launcher.gang(*flags[:2], "--epochs", "4000", *flags[4:], workers=1, ps=2)
    gang["chief-0"].wait_for("evaluation")
    for trainer in gang:
        trainer.send(signal.SIGTERM)
    gang.succeed()
    (at,) = gang["chief-0"].events("stopped")
    assert 90 <= at["step"] < at["steps"] == 4000 * 90
    assert not (tmp_path / "model").exists()

    resumed = launcher.gang(*flags, workers=1, ps=1)
    resumed.succeed()
    assert resumed["chief-0"].events("progress")[0]["step"] > at["step"]
    assert resumed["chief-0"].held_out_accuracy >= 0.9
    assert (tmp_path / "model" / "model.json").exists()


def test_one_worker_with_two_servers_trains_as_one_process_does(launcher: Launcher, tmp_path: Path) -> None:
    tests = Path(__file__).resolve().parents[1]
    ends = []
    for servers in (0, 2):  # with BatchNorm and Adam
        job_dir = tmp_path / str(servers)
        flags = ("--task", "own.with_nnx", "--epochs", "2", "--sharding", "off", "--job-dir", str(job_dir))
        gang = launcher.gang(*flags, workers=0, ps=servers, PYTHONPATH=f"{tests.parent}:{tests}")
        gang.succeed()
        (model,) = (job_dir / "model").glob("*.safetensors")
        loaded = safetensors.numpy.load_file(model)
        ends.append(np.concatenate([loaded[name].ravel() for name in sorted(loaded)]))
    assert float(np.abs(ends[0] - ends[1]).max()) <= 1e-3 * float(np.abs(ends[0]).mean())


def test_sharding_that_needs_replicas_in_sync_is_refused() -> None:
    task = tiny.cnn().task
    with pytest.raises(ClusterError, match="--sharding data is for synchronous training"):
        training.train(parse_arguments(["--sharding", "data"]), ClusterSpec(), strategy.OneDevice(), task)


def test_epoch_counter_counts_epochs_by_the_steps_of_all_workers_from_the_end() -> None:
    experiment = tiny.experiment("--epochs", "3")
    expected = {0: (0, 0), 1: (0, 10), 9: (0, 90), 10: (1, 0), 29: (2, 90), 30: (3, 0), 33: (3, 0)}
    assert {step: training.EpochCounter(30, experiment).position(step)[1:3] for step in expected} == expected
    assert training.EpochCounter(125, experiment).position(105)[:3] == (
        105,
        1,
        0,
    )  # after a checkpoint with other steps
