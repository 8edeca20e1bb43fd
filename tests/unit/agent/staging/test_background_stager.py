"""The wait of a stager for what is away."""

from pathlib import Path

import pytest

from beds.run_ids import unique_run
from trainyard_agent.installer import patience
from trainyard_agent.staging.background_stager import BackgroundStager
from trainyard_agent.staging.base import Away, Staging, StagingFailed
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder
from unit.agent.stub_server import run_order

RUN = unique_run("1")


class Pulls(BackgroundStager):
    """Its registry fails in this way in each try, and then has the image."""

    def __init__(self, root: Path, *failures: StagingFailed, patience_s: float = 600.0) -> None:
        super().__init__(root, patience_s)
        self._failures = list(failures)
        self.activities: list[str] = []

    async def _prepare(self, order: RunOrder) -> Staging:
        self._set_activity(order.run_id, "pulling r/x:1")
        self._note(order.run_id)
        if self._failures:
            raise self._failures.pop(0)
        self._set_activity(order.run_id, "pulling r/x:1: 10 % of 50 MB")
        self._note(order.run_id)
        return Staging("ready")

    def _set_waiting(self, run_id: str, why: str) -> None:
        super()._set_waiting(run_id, why)
        self._note(run_id)

    def _note(self, run_id: str) -> None:
        """The activities as the job's log has them: each change."""
        activity = self._status[run_id].activity
        if self.activities[-1:] != [activity]:
            self.activities.append(activity)

    async def prepared(self) -> Staging:
        self.begin(run_order(RUN, "master-replica-0"))
        await self.settle([RUN], 60)
        return self.status()[RUN]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_FIRST_S", 0.001)


async def test_what_is_away_is_waited_for_with_a_line_for_each_cause_and_one_at_last(tmp_path: Path) -> None:
    cut = [Away(f"r/x:1: registry unreachable (read tcp 10.0.0.2:{port}: reset).") for port in (4001, 4002, 4003)]
    stager = Pulls(tmp_path, *cut, Away("r/x:1: the registry fails (503)."), cut[0])
    ready = await stager.prepared()
    assert ready.phase == "ready"
    unreachable = "tries again: r/x:1: registry unreachable (read tcp 10.0.0.2:4001: reset)"
    assert stager.activities == [
        "pulling r/x:1",
        unreachable,
        "tries again: r/x:1: the registry fails (503)",
        unreachable,
        "pulling r/x:1: 10 % of 50 MB",
    ]
    assert ready.resolved is not None
    (note,) = ready.resolved.installed
    assert note == "It has what was away for 0 s: r/x:1: registry unreachable (read tcp 10.0.0.2:4001: reset)"


async def test_run_whose_wait_is_in_vain_is_given_back_and_a_refusal_ends_it_at_once(tmp_path: Path) -> None:
    away = Away("r/x:1: registry unreachable (EOF).")
    failed = await Pulls(tmp_path, away, patience_s=0.0).prepared()
    assert (failed.phase, failed.reason) == ("failed", Reason.GIVEN_BACK)
    assert failed.message == "What it needs has been away for 0 s: r/x:1: registry unreachable (EOF)."
    refused = await Pulls(tmp_path, away, StagingFailed(Reason.IMAGE_FAILED, "r/x:1: image not found.")).prepared()
    assert (refused.phase, refused.reason) == ("failed", Reason.IMAGE_FAILED)
