"""A cancel sent at any moment of the life of a job ends it, or finds it ended; leaves nothing, and loses no line."""

from collections import Counter

import pytest

from chaos import plan
from chaos.history import History, Place
from chaos.invariants import check
from chaos.service.artifacts import keep_on_failure
from trainyard_protocol.states import JobState

pytestmark = pytest.mark.e2e

EACH = {"process": 2, "docker": 1, "kubernetes": 1}
"""Jobs for each stage of a life."""


@pytest.mark.parametrize(
    "sweep",
    [
        "process",
        pytest.param("kubernetes", marks=pytest.mark.long),
        pytest.param("docker", marks=(pytest.mark.long, pytest.mark.containers)),
    ],
)
def test_cancel_at_any_moment_ends_cancelled_or_in_what_was_truly_reached(
    sweep: plan.Runtime, sweep_place: Place, chaos_seed: int
) -> None:
    drawn = plan.sweep(chaos_seed, sweep, EACH[sweep])
    with keep_on_failure(drawn, f"cancel-{sweep}-{chaos_seed}") as root:
        outcome = History(drawn, sweep_place, root).play()
        check(outcome)
        met = Counter(
            event.before
            for detail in outcome.details.values()
            for event in detail.events
            if event.after == JobState.CANCELLING
        )
        met += Counter(  # of those that had ended before
            detail.state
            for detail in outcome.details.values()
            if JobState.CANCELLING not in {event.after for event in detail.events}
        )
        print(f"cancelled while {dict(met)}")
        assert all(answer.status == 200 for answers in outcome.answers.values() for answer in answers.cancels)
        assert len(met) > 1, f"cancels came only while a job was {met}"
