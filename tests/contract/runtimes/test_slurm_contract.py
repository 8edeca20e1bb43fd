"""Acts of a real Slurm, its users and its nodes, and how the runtime reports them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from beds.run_ids import unique_run
from beds.slurm import SlurmBed
from contract.runtimes.runtime_labs import FOREVER, STUBBORN, Driver, Program, SlurmLab, order
from trainyard_agent.engines.fake import Print
from trainyard_agent.host import process_tags
from trainyard_agent.main import main
from trainyard_agent.runtimes.base import StartFailed
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.states import Reason, ReplicaState

pytestmark = pytest.mark.long

CHIEF, WORKER, OTHER = "master-replica-0", "worker-replica-0", "worker-replica-1"
RUN, NEXT = unique_run("1"), unique_run("2")


@pytest.fixture
def lab(slurm: SlurmBed, tmp_path: Path) -> Iterator[SlurmLab]:
    lab = SlurmLab(tmp_path / "shared", slurm)
    yield lab
    lab.end()


@pytest.fixture
def driver(lab: SlurmLab) -> Driver:
    return Driver(lab)


@contextmanager
def taken(slurm: SlurmBed, program: str = "true") -> Iterator[None]:
    """The nodes, by a job of higher priority, which is told to end at the end."""
    taking = ("-p", "urgent", "-N3", "--exclusive", "--wrap", program, "-o", "/dev/null", "-J", "taking")
    slurm.run("sbatch", *taking)
    try:
        yield
    finally:
        slurm.run("scancel", "--name=taking")
        slurm.until_idle()


def test_job_of_higher_priority_takes_the_nodes(driver: Driver, slurm: SlurmBed) -> None:
    driver.start_and_wait(RUN, {CHIEF: STUBBORN, WORKER: FOREVER})
    with taken(slurm, "sleep 1000"):
        for exit_ in driver.ends(RUN).values():
            assert (exit_.reason, exit_.after_stop) == (Reason.PREEMPTED, False), exit_
            assert "other work" in exit_.message
        # The nodes are taken, so the next run waits, says for what, and can be stopped before it starts.
        driver.start(NEXT, {CHIEF: FOREVER})
        driver.until(lambda: "(Resources)" in driver.reports(NEXT)[CHIEF].waits)
        assert driver.reports(NEXT)[CHIEF].state is ReplicaState.STARTING
        driver.runtime.stop(NEXT, 5.0)
        stopped = driver.end(NEXT, CHIEF)
        assert (stopped.code, stopped.reason, stopped.after_stop) == (None, Reason.STOPPED, True)


def test_job_that_ends_itself_in_the_grace_of_a_preemption_is_preempted(
    driver: Driver, lab: SlurmLab, slurm: SlurmBed
) -> None:
    """Slurm says COMPLETED of it."""
    lab.partition = "gentle"
    lab.reopen()
    polite = Program((Print("up"),), shell="trap 'exit 0' TERM; while :; do sleep 0.1; done")
    driver.start_and_wait(RUN, {CHIEF: polite, WORKER: polite})
    with taken(slurm):
        for exit_ in driver.ends(RUN).values():
            assert (exit_.code, exit_.reason, exit_.after_stop) == (0, Reason.PREEMPTED, False), exit_
        assert "COMPLETED" in slurm.run("squeue", "-h", "--states=all", f"--name=ty-{RUN}", "-o", "%T")


SAVES = """python3 -c '
import os, signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(1)
    print("saved", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.01)
'; exit 0"""
"""A program that saves for longer than the shell lives that has started it."""


@pytest.mark.parametrize("by_slurm", [False, True])
def test_what_a_shell_has_started_has_the_grace_of_a_stop_and_of_a_preemption(
    driver: Driver, lab: SlurmLab, slurm: SlurmBed, *, by_slurm: bool
) -> None:
    lab.partition = "gentle"
    lab.reopen()
    driver.start(RUN, {CHIEF: Program((Print("up"),), shell=SAVES)})
    driver.until(lambda: "ready" in driver.texts(RUN, CHIEF))
    with taken(slurm) if by_slurm else nullcontext():
        if not by_slurm:
            driver.runtime.stop(RUN, 60.0)
        ended = driver.end(RUN, CHIEF)
        assert (ended.code, ended.reason) == (143, Reason.PREEMPTED if by_slurm else Reason.STOPPED)
        assert driver.wait_for_log(RUN, CHIEF) == ["up", "ready", "saving", "saved"]


def test_job_that_is_cancelled_in_slurm_says_so(driver: Driver, slurm: SlurmBed) -> None:
    driver.start_and_wait(RUN, {CHIEF: FOREVER, WORKER: Program(code=5)})
    driver.until(lambda: driver.reports(RUN)[WORKER].exit)

    slurm.run("scancel", f"--name=ty-{RUN}")

    found = driver.ends(RUN)
    assert (found[CHIEF].code, found[CHIEF].reason) == (143, Reason.KILLED_BY_SIGNAL)
    assert "cancelled in Slurm" in found[CHIEF].message
    assert (found[WORKER].code, found[WORKER].reason) == (5, Reason.PROGRAM_ERROR)


def test_node_that_is_lost_is_blamed_and_not_the_peer_that_fails_of_it(
    driver: Driver, lab: SlurmLab, slurm: SlurmBed, tmp_path: Path
) -> None:
    """Slurm ends no task on a node that it has lost: when the node is back, the replica ends itself."""
    connection = tmp_path / "connection"
    connection.touch()
    asked = order(RUN, CHIEF, WORKER)
    halves = [replica.model_copy(update={"vcpus": 3}) for replica in asked.replicas]  # of one node: none has both
    driver.runtime.place(asked.model_copy(update={"replicas": tuple(halves)}))
    fails = Program(shell=f"while test -e {connection}; do sleep 0.05; done; exit 3")
    driver.runtime.start(RUN, [lab.launch(CHIEF, fails), lab.launch(WORKER, STUBBORN)])
    driver.until(lambda: driver.texts(RUN, WORKER))
    supervisor = lab.supervisor(RUN, WORKER)
    node = supervisor.environ()["SLURMD_NODENAME"]
    slurm.kill_node(node)
    supervisor.suspend()
    try:
        connection.unlink()
        run = tmp_path / "shared" / "runs" / RUN
        driver.until(lambda: driver.reports(RUN) and (run / "ask.json").exists())
        assert driver.reports(RUN)[CHIEF].exit is None
        slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
        found = driver.ends(RUN)
        assert (found[CHIEF].code, found[CHIEF].reason) == (3, Reason.PROGRAM_ERROR)
        assert found[WORKER].reason is Reason.HOST_LOST
        assert f"Node {node} of its job stopped answering" in found[WORKER].message
        assert found[WORKER].finished_at < found[CHIEF].finished_at
        supervisor.resume()
        lab.reopen().recover()
        driver.until(lambda: not process_tags.tagged(RUN))
        assert driver.ends(RUN)[WORKER] == found[WORKER]
    finally:
        slurm.start_node(node)
        slurm.until_idle()


def test_replica_that_slurm_starts_a_second_time_does_not_begin_again(driver: Driver, lab: SlurmLab) -> None:
    driver.start_and_wait(RUN, {CHIEF: FOREVER})
    running = process_tags.tagged(RUN)
    again = lab.start_rank_again(RUN)
    assert "master-replica-0 has begun before" in again
    assert process_tags.tagged(RUN) == running
    assert driver.reports(RUN)[CHIEF].state is ReplicaState.RUNNING


def test_other_users_of_slurm_see_no_secret_and_nothing_of_the_agent(
    driver: Driver, slurm: SlurmBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTS_OWN", "of-the-agent")
    driver.place(RUN, CHIEF)
    launch = replace(driver.lab.launch(CHIEF, Program(shell="env")), secrets={"TOKEN": "a-secret-value"})
    driver.runtime.start(RUN, [launch])
    driver.until(lambda: "TOKEN=***" in driver.texts(RUN, CHIEF))

    seen = slurm.run("scontrol", "show", "job")
    script = tmp_path / "script"
    slurm.run("scontrol", "write", "batch_script", seen.split("JobId=")[-1].split()[0], str(script))
    assert "rank.py" in script.read_text()
    for text in (seen, script.read_text(), slurm.stored_environments()):
        assert "a-secret-value" not in text
        assert "of-the-agent" not in text
    assert not any("of-the-agent" in line for line in driver.texts(RUN, CHIEF))


def test_replicas_of_different_machines_are_parts_of_one_job(driver: Driver, slurm: SlurmBed) -> None:
    asked = order(RUN, CHIEF, WORKER, OTHER)
    larger = asked.replicas[0].model_copy(update={"vcpus": 3, "machine_type": "local-3"})
    driver.runtime.place(asked.model_copy(update={"replicas": (larger, *asked.replicas[1:])}))
    programs = {task: Program(shell="echo $TRAINYARD_REPLICA; sleep 1000") for task in (CHIEF, WORKER, OTHER)}
    driver.runtime.start(RUN, [driver.lab.launch(task, program) for task, program in programs.items()])
    for task in programs:
        driver.until(partial(driver.texts, RUN, task))
        assert driver.texts(RUN, task) == [f"{RUN}/{task}"]
    rows = [row.split() for row in slurm.run("squeue", "-h", f"--name=ty-{RUN}", "-o", "%i %C %D").splitlines()]
    assert sorted((job.partition("+")[2], cpus, nodes) for job, cpus, nodes in rows) == [
        ("0", "3", "1"),
        ("1", "2", "1"),
    ]
    slurm.run("scancel", f"--name=ty-{RUN}")
    for exit_ in driver.ends(RUN).values():
        assert (exit_.code, exit_.reason) == (143, Reason.KILLED_BY_SIGNAL)


def test_job_that_slurm_refuses_says_why_at_once(
    driver: Driver, lab: SlurmLab, slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal of sbatch, or a reason to wait that only a person can change."""
    lab.partition = "nowhere"
    lab.reopen()
    with pytest.raises(StartFailed, match="invalid partition specified: nowhere") as failure:
        driver.start(RUN, {CHIEF: FOREVER})
    assert failure.value.reason is Reason.REFUSED
    assert driver.runtime.recover() == []
    assert lab.remaining(RUN) == []

    monkeypatch.setenv("SBATCH_TIMELIMIT", "5")
    lab.partition = "brief"
    lab.reopen()
    driver.start(RUN, {CHIEF: FOREVER, WORKER: FOREVER})
    for exit_ in driver.ends(RUN).values():
        assert (exit_.code, exit_.reason) == (None, Reason.REFUSED)
        assert "its time limit is longer than its partition allows" in exit_.message
        assert "PartitionTimeLimit" in exit_.message
    driver.until(lambda: "PENDING" not in slurm.run("squeue", "-h", f"--name=ty-{RUN}", "-o", "%T"))


def asking(lab: SlurmLab, program: Program, **fields: Any) -> None:
    """Start a chief whose job has these fields."""
    update = {"training_input": parse_training_input(fields)}
    lab.runtime.place(order(RUN, CHIEF).model_copy(update=update))
    lab.runtime.start(RUN, [replace(lab.launch(CHIEF, program), environment={"OWN": "of the job"})])


def test_job_gets_the_nodes_the_time_limit_and_the_setup_that_it_asks_for(
    driver: Driver, lab: SlurmLab, slurm: SlurmBed
) -> None:
    setup = ["tool() { export TOOL=1 OWN=changed PATH=/apps/tool:$PATH; }", "tool  # as a module does"]
    options = {"constraint": "only-n2", "exclusive": True, "qos": "normal", "setup": setup}
    prints = Program(shell='echo "$TOOL $OWN $PATH"; sleep 1000')
    asking(lab, prints, engineOptions={"slurm": options}, scheduling={"maxRunningTime": "600s"})
    driver.until(lambda: driver.texts(RUN, CHIEF))
    (line,) = driver.texts(RUN, CHIEF)
    tool, own, path = line.split("1 ", 1)[0], line[2 : line.rindex(" ")], line.rpartition(" ")[2]
    assert (tool, own) == ("", "of the job"), line
    assert path.split(":")[1] == "/apps/tool"
    (row,) = slurm.run("squeue", "-h", f"--name=ty-{RUN}", "-o", "%l %f %h %N").splitlines()
    assert row.split() == ["16:00", "only-n2", "NO", "n2"]


def test_stop_all_ends_the_runs_of_an_agent_that_does_not_run(
    driver: Driver, lab: SlurmLab, slurm: SlurmBed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.start_and_wait(RUN, {CHIEF: FOREVER, WORKER: FOREVER})
    slurm.run("sbatch", "-J", f"ty-{NEXT}", "-o", "/dev/null", "--wrap", "sleep 1000")

    def agent(*words: str) -> str:
        shared = "--runtime", "slurm", "--shared-dir", str(tmp_path / "shared")
        assert main(["--state-dir", str(tmp_path / "agent"), *shared, *words]) == 0
        return capsys.readouterr().out

    *checks, orphan = json.loads(agent("--doctor"))
    assert [(one["check"], one["status"]) for one in checks] == [("slurm", "ok"), ("shared-dir", "ok")]
    assert f"of the run {NEXT[:12]} is orphaned: the run is not in {tmp_path / 'shared'}," in orphan["found"]
    slurm.run(*orphan["command"].split())

    assert agent("--stop-all", "--grace", "5") == "Stopped 2 replicas in Slurm.\n"
    lab.reopen()
    assert {one.reason for one in driver.ends(RUN).values()} == {Reason.HOST_SHUTDOWN}
    assert "Nothing is left of runs that are gone" in agent("--doctor")


def test_controller_that_was_killed_stops_nothing_and_is_not_needed_for_a_stop(driver: Driver, slurm: SlurmBed) -> None:
    stopped = unique_run("3")
    driver.start_and_wait(stopped, {CHIEF: FOREVER, WORKER: STUBBORN})
    driver.start_and_wait(NEXT, {CHIEF: FOREVER})
    slurm.kill_controller()
    try:
        driver.runtime.stop(stopped, 0.1)
        codes = {task: end.code for task, end in driver.ends(stopped).items()}
        assert codes == {CHIEF: 143, WORKER: 137}
        assert driver.reports(NEXT)[CHIEF].state is ReplicaState.RUNNING
        driver.runtime.remove(stopped)
        assert driver.runtime.observe(stopped) == ()
        with pytest.raises(StartFailed, match="Unable to contact slurm controller") as failure:
            driver.start(RUN, {CHIEF: FOREVER})
        assert failure.value.reason is Reason.GIVEN_BACK
    finally:
        slurm.start_controller()
        slurm.until_up()
        slurm.run("scancel", f"--name=ty-{stopped}")  # else it learns of its end a minute later
    assert driver.reports(NEXT)[CHIEF].state is ReplicaState.RUNNING
    driver.runtime.stop(NEXT, 5.0)
    assert driver.wait_for_exits(NEXT)[CHIEF].state is ReplicaState.EXITED
