"""The trainer template on a chief and a worker, killed again and again: each replica and each service in turn, at
random moments. It ends with the parameters of one that was left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from beds.waiting import until
from chaos.history import History, Place
from chaos.invariants import every_job_has_ended_by_legal_moves, nobody_stumbled, nothing_is_left
from chaos.plan import Operation, Plan, PlannedJob
from chaos.service.artifacts import keep_on_failure
from chaos.service.people import Log
from chaos.service.services import Forge
from e2e.harness import REPOSITORY
from trainyard_protocol.states import JobState

pytestmark = [pytest.mark.long, pytest.mark.e2e]

KILLS = 4
VICTIMS = ("master-replica-0", "server", "worker-replica-0", "agent")
EPOCHS_FOR_A_KILL = 3
PATIENCE_S = 1200.0
ALONE, KILLED = "left_alone", "killed"


class Training(History):
    """Two jobs, one after the other: the first is left alone, the second is killed `times`."""

    retries = 100

    def training_input(self, job: PlannedJob) -> dict[str, Any]:
        directory = self.root / "jobs" / job.name
        epochs = str(EPOCHS_FOR_A_KILL * max(2, int(self.plan.operations[0].values["times"])))
        flags = ["--epochs", epochs, "--checkpoint-every", "10", "--evaluate-every", "0", "--log-every", "5"]
        gang = {"scaleTier": "CUSTOM", "masterType": "local-1", "workerType": "local-1", "workerCount": "1"}
        return {**gang, "pythonModule": "trainyard_trainer.task", "args": flags, "jobDir": str(directory)}

    def submit(self, job: PlannedJob) -> None:
        if job.name == KILLED:
            until(lambda: self.answers[ALONE].followed.summary, "the training that is left alone", PATIENCE_S)
        super().submit(job)

    def do_kill_in_turn(self, times: int) -> None:
        random_ = random.Random(self.plan.seed)
        self.patience_s = PATIENCE_S
        run, lines = 1, 0
        for number in range(times):
            until(partial(self._goes_on, run, lines), "the training to go on", PATIENCE_S)
            time.sleep(random_.uniform(0.0, 1.0))
            victim = VICTIMS[number % len(VICTIMS)]
            assert not self.answers[KILLED].followed.summary, f"it was over before kill {number + 1}, of {victim}"
            if victim == "server":
                self.do_kill_server(0, down_s=0.1)
            elif victim == "agent":
                self.do_kill_agent(0, down_s=0.1)
            else:
                until(partial(self._kill_replica, victim), f"{victim} to be killed", PATIENCE_S)
                run = max(self._steps())[0] + 1
            lines = len(self._steps())

    def _steps(self) -> list[tuple[int, int]]:
        """The run and the step of each line in which the chief says how far it is."""
        return [
            (entry.run, int(message["step"]))
            for entry in list(self.answers[KILLED].followed.entries)
            if entry.task == "master-replica-0" and (message := _event(entry.text)).get("event") == "progress"
        ]

    def _goes_on(self, run: int, lines: int) -> bool:
        """There are more lines, and the last is of this run or a later one."""
        steps = self._steps()
        more = len(steps) > lines and steps[-1][0] >= run
        return more or self.answers[KILLED].followed.summary is not None

    def _kill_replica(self, task: str) -> bool:
        """The program or its supervisor, of whichever run is alive now."""
        for path in self.root.glob(f"agent-0/runs/*/{task}/started.json"):
            try:
                pid = json.loads(path.read_text())["pid"]
                if b"trainyard_trainer.task" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    return True
            except OSError:
                continue  # it has just ended
        return False


def test_training_killed_again_and_again_ends_with_the_parameters_of_one_left_alone(
    forge: Forge, trainer_python: str, chaos_seed: int, pytestconfig: pytest.Config
) -> None:
    asked = pytestconfig.getoption("--chaos-kills")
    times = KILLS if asked is None else asked
    jobs = tuple(PlannedJob(name, 0.0, 1, {}, False) for name in (ALONE, KILLED))
    drawn = Plan(chaos_seed, "process", 1, 1, jobs, (Operation(0.0, "kill_in_turn", {"times": times}),), 0.0)
    with keep_on_failure(drawn, f"training-{chaos_seed}") as root:
        compiled_once = {  # most of a short training is compilation
            "JAX_COMPILATION_CACHE_DIR": str(root / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        place = Place(forge, "", python=trainer_python, replica_environment=compiled_once)
        outcome = Training(drawn, place, root).play()
        for check in (every_job_has_ended_by_legal_moves, nothing_is_left, nobody_stumbled):
            check(outcome)
        assert {detail.state for detail in outcome.details.values()} == {JobState.SUCCEEDED}
        assert len(outcome.details[ALONE].runs) == 1
        runs = len(outcome.details[KILLED].runs)
        assert runs == 1 + sum(1 for n in range(times) if "replica" in VICTIMS[n % len(VICTIMS)])
        alone, killed = (_parameters(outcome.logs[name]) for name in (ALONE, KILLED))
        assert len(alone) == 2
        assert killed == alone
        print(f"{times} kills, {runs} runs; parameters {alone}")


def _parameters(log: Log) -> list[str]:
    """The last output of chief and worker of the last run."""
    last = max(entry.run for entry in log.entries)
    message = [_event(entry.text) for entry in log.entries if entry.run == last]
    return [str(event["parameters_sha256"]) for event in message if event.get("event") == "done"]


def _event(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text)) if text.startswith("{") else {}
    except ValueError:
        return {}


@pytest.fixture(scope="session")
def trainer_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with what these tests have, and the library of trainers."""
    directory = tmp_path_factory.mktemp("trainer")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    base = [path for path in sys.path if path.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in base]
    (packages / "base.pth").write_text("".join([*lines, f"{REPOSITORY / 'trainer_library'}\n"]))
    return str(directory / "bin" / "python")
