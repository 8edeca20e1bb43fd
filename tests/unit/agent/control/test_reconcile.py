"""The table at the top of `reconcile.py`, cell by cell, then every combination of cells."""

from dataclasses import replace

import pytest

from trainyard_agent.control.reconcile import (
    Action,
    AskParts,
    GiveUp,
    LocalRun,
    PlacePart,
    Prepare,
    Remove,
    Start,
    Stop,
    reconcile,
)
from trainyard_agent.peers.parts import PartState
from trainyard_agent.staging.base import Staging
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder, SpreadOrder
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


STOPPED = GiveUp(TO_STOP, Reason.STOPPED, "It was stopped before it was started.")
UNPREPARED = GiveUp(TO_RUN, Reason.PACKAGES_FAILED, "no such package")

CELLS: dict[str, tuple[LocalRun | None, Staging | None, bool, list[Action], list[Action], list[Action]]] = {
    # held, staging, given up: what follows if it is ordered to run, ordered to stop, not ordered
    "not here": (None, None, False, [Prepare(TO_RUN)], [STOPPED], []),
    "staged by a former agent": (None, STALE, False, [Prepare(TO_RUN)], [STOPPED], [Remove(RUN)]),
    "being staged": (None, PREPARING, False, [], [STOPPED], [Remove(RUN)]),
    "staged": (None, READY, False, [Start(TO_RUN, READY)], [STOPPED], [Remove(RUN)]),
    "staging failed": (None, FAILED, False, [UNPREPARED], [STOPPED], [Remove(RUN)]),
    "given up": (None, None, True, [], [], [Remove(RUN)]),
    "alive": (ALIVE, READY, False, [], [Stop(RUN, 3.0)], [Stop(RUN, 7.0)]),
    "alive, its staging is gone": (ALIVE, None, False, [], [Stop(RUN, 3.0)], [Stop(RUN, 7.0)]),
    "ended": (ENDED, READY, False, [], [], [Remove(RUN)]),
}


def test_reconcile_is_the_table_at_its_top() -> None:
    found = {
        name: (*cell[:3], *(decide(order, *cell[:3]) for order in (TO_RUN, TO_STOP, None)))
        for name, cell in CELLS.items()
    }
    assert found == CELLS


HERE, THERE = {"master-replica-0": "a:1"}, {"worker-replica-0": "b:1"}
PART = TO_RUN.model_copy(update={"spread": SpreadOrder(gang="g")})
ADDRESSED = TO_RUN.model_copy(update={"spread": SpreadOrder(gang="g", addresses=HERE | THERE)})
BEGINS = TO_RUN.model_copy(update={"spread": SpreadOrder(gang="g", addresses=HERE | THERE, starts=True)})
NO_LONGER = "Its agent has started again before the gang did, and the other parts wait for it no more."
OTHER_PORT = "Its agent has started again before the gang did: the other parts know another address."


@pytest.mark.parametrize(
    ("order", "part", "follows"),
    [
        (PART, None, [PlacePart(PART)]),
        (ADDRESSED, None, [GiveUp(ADDRESSED, Reason.GIVEN_BACK, NO_LONGER)]),
        (PART, PartState(HERE), []),
        (ADDRESSED, PartState(HERE), [AskParts(ADDRESSED)]),
        (ADDRESSED, PartState(HERE, is_asking=True), []),
        (ADDRESSED, PartState(HERE, reaches=True), []),
        (BEGINS, PartState(HERE, reaches=True), [Start(BEGINS, READY)]),
        (ADDRESSED, PartState(HERE, problem="no way"), [GiveUp(ADDRESSED, Reason.HOST_FAILED, "no way")]),
        (BEGINS, PartState({"master-replica-0": "a:2"}), [GiveUp(BEGINS, Reason.GIVEN_BACK, OTHER_PORT)]),
    ],
)
def test_reconcile_part_of_a_run_over_agents_is_the_second_table(
    order: RunOrder, part: PartState | None, follows: list[Action]
) -> None:
    parts = {RUN: part} if part is not None else {}
    assert reconcile([order], {}, {RUN: READY}, set(), parts, no_images="") == follows
    stop = order.model_copy(update={"target": "stop"})
    assert reconcile([stop], {}, {RUN: READY}, set(), parts, no_images="") == [replace(STOPPED, order=stop)]
    assert reconcile([], {}, {}, set(), parts, no_images="") == ([Remove(RUN)] if parts else [])


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
