"""The table at the top of `reconcile.py`, cell by cell, then every combination of cells."""

import itertools

import pytest

from trainyard_agent.control.reconcile import (
    Action,
    GiveUp,
    LocalRun,
    Prepare,
    Remove,
    Start,
    Stop,
    reconcile,
)
from trainyard_agent.staging.base import Staging
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder
from unit.agent.stub_server import run_order

RUN = "1" * 32
ALIVE, ENDED = LocalRun(alive=True, grace_s=7.0), LocalRun(alive=False, grace_s=7.0)
STALE, PREPARING = Staging("stale"), Staging("preparing", activity="installing")
READY = Staging("ready", python="/venv/bin/python")
FAILED = Staging("failed", reason=Reason.PACKAGES_FAILED, message="no such package")
TO_RUN, TO_STOP = run_order(RUN, grace_s=3.0), run_order(RUN, target="stop", grace_s=3.0)


def decide(
    order: RunOrder | None,
    held: LocalRun | None = None,
    staging: Staging | None = None,
    given_up: bool = False,
    no_images: str = "this agent starts no containers",
) -> list[Action]:
    return reconcile(
        [order] if order else [],
        {RUN: held} if held else {},
        {RUN: staging} if staging else {},
        {RUN} if given_up else set(),
        no_images=no_images,
    )


@pytest.mark.parametrize(
    ("held", "staging", "given_up", "expected"),
    [
        (None, None, False, [Prepare(TO_RUN)]),
        (None, STALE, False, [Prepare(TO_RUN)]),
        (None, PREPARING, False, []),
        (None, READY, False, [Start(TO_RUN, READY)]),
        (None, FAILED, False, [GiveUp(TO_RUN, Reason.PACKAGES_FAILED, "no such package")]),
        (None, None, True, []),
        (ALIVE, READY, False, []),
        (ALIVE, None, False, []),
        (ENDED, READY, False, []),
    ],
)
def test_reconcile_ordered_to_run_moves_towards_running(
    held: LocalRun | None, staging: Staging | None, given_up: bool, expected: list[Action]
) -> None:
    assert decide(TO_RUN, held, staging, given_up) == expected


@pytest.mark.parametrize("staging", [None, STALE, PREPARING, READY, FAILED])
def test_reconcile_ordered_to_stop_before_start_gives_up(staging: Staging | None) -> None:
    (action,) = decide(TO_STOP, None, staging)
    assert isinstance(action, GiveUp)
    assert (action.order, action.reason) == (TO_STOP, Reason.STOPPED)


@pytest.mark.parametrize(
    ("held", "given_up", "expected"), [(ALIVE, False, [Stop(RUN, 3.0)]), (ENDED, False, []), (None, True, [])]
)
def test_reconcile_ordered_to_stop_after_start_stops_what_lives(
    held: LocalRun | None, given_up: bool, expected: list[Action]
) -> None:
    assert decide(TO_STOP, held, READY if held else None, given_up) == expected


@pytest.mark.parametrize(
    ("held", "staging", "given_up", "expected"),
    [
        (None, None, False, []),
        (None, STALE, False, [Remove(RUN)]),
        (None, PREPARING, False, [Remove(RUN)]),
        (None, READY, False, [Remove(RUN)]),
        (None, FAILED, False, [Remove(RUN)]),
        (None, None, True, [Remove(RUN)]),
        (ALIVE, READY, False, [Stop(RUN, 7.0)]),
        (ENDED, READY, False, [Remove(RUN)]),
    ],
)
def test_reconcile_not_ordered_stops_then_removes(
    held: LocalRun | None, staging: Staging | None, given_up: bool, expected: list[Action]
) -> None:
    assert decide(None, held, staging, given_up) == expected


def test_reconcile_job_with_an_image_is_refused_without_a_container_engine() -> None:
    order = run_order(RUN, pythonModule="", masterConfig={"imageUri": "gcr.io/p/i"})

    (action,) = decide(order)

    assert isinstance(action, GiveUp)
    assert action.reason is Reason.HOST_FAILED  # it waits for an engine
    assert action.message == "It needs the image gcr.io/p/i, and this agent starts no containers."
    assert decide(order, no_images="") == [Prepare(order)]


def test_reconcile_job_that_cannot_be_read_is_refused() -> None:
    (action,) = decide(run_order(RUN, scaleTier="ENORMOUS"))
    assert isinstance(action, GiveUp)
    assert action.reason is Reason.START_FAILED
    assert "scale_tier" in action.message


def test_reconcile_of_several_runs_frees_before_it_starts() -> None:
    second, third = "2" * 32, "3" * 32
    actions = reconcile(
        [run_order(second), run_order(third, target="stop")],
        {RUN: ALIVE, third: ALIVE},
        {second: READY},
        set(),
        no_images="",
    )
    assert actions == [Stop(RUN, 7.0), Stop(third, 5.0), Start(run_order(second), READY)]


def test_reconcile_of_every_combination_is_one_action_at_most_and_never_starts_twice() -> None:
    combinations = itertools.product(
        (None, TO_RUN, TO_STOP),
        (None, ALIVE, ENDED),
        (None, STALE, PREPARING, READY, FAILED),
        (False, True),
        ("", "it has no engine"),
    )
    for order, held, staging, given_up, no_images in combinations:
        actions = decide(order, held, staging, given_up, no_images)
        assert len(actions) <= 1
        for action in actions:
            if isinstance(action, Start):
                assert held is None
                assert not given_up
                assert order is TO_RUN
                assert staging is READY
            if isinstance(action, Stop):
                assert held is ALIVE
                assert order is not TO_RUN
            if isinstance(action, Remove):
                assert order is None
                assert held is not ALIVE
