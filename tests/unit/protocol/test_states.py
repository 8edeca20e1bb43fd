from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from trainyard_protocol.states import (
    FAULTS,
    FINAL_JOB_STATES,
    JOB_MOVES,
    REPLICA_MOVES,
    RUN_MOVES,
    Fault,
    IllegalMove,
    JobState,
    Reason,
    ReplicaState,
    RunState,
    check_move,
    reason_of_exit,
)

TABLES: list[tuple[type[StrEnum], Mapping[Any, frozenset[Any]]]] = [
    (JobState, JOB_MOVES),
    (RunState, RUN_MOVES),
    (ReplicaState, REPLICA_MOVES),
]


@pytest.mark.parametrize(("states", "table"), TABLES)
def test_move_table_says_something_of_every_state_and_names_no_other(
    states: type[StrEnum], table: Mapping[StrEnum, frozenset[StrEnum]]
) -> None:
    assert set(table) == set(states)
    assert all(moves <= set(states) for moves in table.values())
    assert all(state not in moves for state, moves in table.items())


@pytest.mark.parametrize(("states", "table"), TABLES)
def test_check_move_allows_exactly_what_the_table_lists(
    states: type[StrEnum], table: Mapping[StrEnum, frozenset[StrEnum]]
) -> None:
    for before in states:
        for after in states:
            if after in table[before]:
                check_move(table, before, after)
            else:
                with pytest.raises(IllegalMove):
                    check_move(table, before, after)


@pytest.mark.parametrize(("states", "table"), TABLES)
def test_every_state_leads_to_a_final_one(
    states: type[StrEnum], table: Mapping[StrEnum, frozenset[StrEnum]]
) -> None:
    final = {state for state, moves in table.items() if not moves}
    for start in states:
        seen, front = {start}, [start]
        while front:
            front = [after for state in front for after in table[state] if after not in seen]
            seen |= set(front)
        assert seen & final


def test_final_job_states_are_those_of_the_api() -> None:
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED} == FINAL_JOB_STATES


def test_every_reason_has_a_fault() -> None:
    assert set(FAULTS) == set(Reason)
    assert set(FAULTS.values()) == set(Fault)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0, Reason.COMPLETED),
        (1, Reason.PROGRAM_ERROR),
        (127, Reason.PROGRAM_ERROR),
        (128, Reason.PROGRAM_ERROR),
        (134, Reason.KILLED_BY_SIGNAL),
        (137, Reason.KILLED_BY_SIGNAL),
        (192, Reason.KILLED_BY_SIGNAL),
        (193, Reason.PROGRAM_ERROR),
        (255, Reason.PROGRAM_ERROR),
    ],
)
def test_reason_of_exit_tells_programs_from_signals(code: int, reason: Reason) -> None:
    assert reason_of_exit(code) is reason
