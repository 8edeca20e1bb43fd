"""The disk of one agent of two is full for a while: every job ends as it would have without that."""

import pytest

from chaos import plan
from chaos.history import History, Place
from chaos.invariants import check
from chaos.service.artifacts import keep_on_failure
from trainyard_protocol.states import JobState, Reason

pytestmark = [pytest.mark.long, pytest.mark.e2e]

MOST_WASTED = 1
"""Runs of a job that a full disk may take: the first, which tells of it."""


@pytest.mark.parametrize("sweep", ["process"])
def test_full_disk_of_one_agent_of_two_fails_no_job_and_wastes_few_runs(
    sweep: plan.Runtime, sweep_place: Place, chaos_seed: int
) -> None:
    drawn = plan.full_disk(chaos_seed)
    with keep_on_failure(drawn, f"full-disk-{sweep}-{chaos_seed}") as root:
        outcome = History(drawn, sweep_place, root).play()
        check(outcome)
        assert {detail.state for detail in outcome.details.values()} == {JobState.SUCCEEDED}
        wasted = {
            name: [
                run.verdict.message
                for run in detail.runs
                if run.verdict is not None and run.verdict.reason is Reason.HOST_FAILED
            ]
            for name, detail in outcome.details.items()
        }
        print(f"runs that the full disk took: {wasted}")
        starts = (root / "agent-0.log").read_text().count(" connects to ")
        assert starts == 1, "an agent that runs lives through it"
        assert all(len(runs) <= MOST_WASTED for runs in wasted.values()), wasted
