"""An engine that hangs holds up no report, of processes least of all."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainyard_agent.engines.docker.probe import EngineState
from trainyard_agent.engines.docker.runtime import DockerRuntime
from trainyard_agent.engines.docker.spec import Owner
from trainyard_protocol.states import ReplicaState
from unit.agent.stub_server import run_order


class Hangs:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked")


def test_runs_are_observed_without_an_engine_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    probe = SimpleNamespace(state=EngineState(problem="no Docker engine answers at x (timed out)"), engine=Hangs())
    runtime = DockerRuntime(tmp_path, Hangs(), Owner("a"), probe=probe)  # type: ignore[arg-type]
    runtime.place(run_order("1" * 32))

    assert [report.state for report in runtime.observe("1" * 32)] == [ReplicaState.PENDING]
    assert "no Docker engine answers at x (timed out). Containers keep running" in caplog.text
