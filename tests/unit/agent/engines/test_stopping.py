"""The end of all runs without an agent: an engine that fails affects no other."""

from pathlib import Path

import pytest

from beds.run_ids import unique_run
from trainyard_agent.engines.fake import FakeRuntime
from trainyard_agent.engines.fake.engine import FakeEngine
from trainyard_agent.engines.stopping import stop_runs
from trainyard_agent.runtimes.base import EngineUnavailable, Handle
from trainyard_agent.settings import AgentSettings
from trainyard_protocol.states import Reason


class _Slow(FakeRuntime):
    """Its run has ended at the second look."""

    looks = 0

    def recover(self) -> list[Handle]:
        return [Handle(run_id=unique_run("1"), runtime="fake", addresses={}, grace_s=0.0, launched=True)]

    def has_ended(self, run_id: str) -> bool:
        self.looks += 1
        return self.looks > 1


class _Away(_Slow):
    def has_ended(self, run_id: str) -> bool:
        raise EngineUnavailable("the engine is away")


def test_engine_that_fails_while_its_runs_end_affects_no_other(tmp_path: Path) -> None:
    away, other = FakeEngine(), FakeEngine()
    slow = other.runtime = _Slow(other.host)
    away.runtime = _Away(away.host)
    with pytest.raises(EngineUnavailable, match="is away"):
        stop_runs([away, other], AgentSettings(state_dir=tmp_path), lambda _: 0.0, Reason.HOST_SHUTDOWN)
    assert slow.looks == 2
