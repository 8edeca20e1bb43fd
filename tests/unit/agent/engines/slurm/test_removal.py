"""Removal of a run whose job Slurm has not ended."""

from pathlib import Path

import pytest

from trainyard_agent.engines.slurm import commands, runtime
from trainyard_agent.engines.slurm.commands import SlurmJob
from trainyard_agent.engines.slurm.runtime import SlurmRuntime
from trainyard_agent.host.files import write_json
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.wire.sync import ReplicaOrder, RunOrder

RUN, CHIEF = "1" * 32, "master-replica-0"


@pytest.mark.parametrize(("state", "is_waited_for"), [("COMPLETING", False), ("RUNNING", True)])
def test_run_whose_ranks_have_ended_is_removed_while_its_nodes_run_an_epilog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, is_waited_for: bool
) -> None:
    asked = 0

    def jobs(names: list[str]) -> list[SlurmJob]:
        nonlocal asked
        asked += 1
        return [SlurmJob("7", state, "n1", names[0], "main", "UNLIMITED", "UNLIMITED", "None")]

    monkeypatch.setattr(runtime, "_KILL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(commands, "submit", lambda *_: "7")
    monkeypatch.setattr(commands, "jobs", jobs)
    slurm = SlurmRuntime(tmp_path)
    replica = ReplicaOrder(task=CHIEF, machine_type="local-1", cpus=(), memory_bytes=1 << 30)
    order = RunOrder(
        run_id=RUN, number=1, target="run", project="p", job_id="j", training_input={}, replicas=(replica,), grace_s=5.0
    )
    slurm.place(order)
    slurm.start(RUN, [Launch(CHIEF, ("true",), {}, (), 0)])
    directory = tmp_path / "runs" / RUN / CHIEF
    write_json(directory / "exit.json", {"time": "2026-01-01T10:00:00Z", "status": 0})
    write_json(directory / "done.json", {"lines": 0})

    slurm.remove(RUN)
    assert not (tmp_path / "runs" / RUN).exists()
    assert (asked > 1) is is_waited_for
