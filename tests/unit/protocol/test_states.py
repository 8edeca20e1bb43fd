import itertools
from collections.abc import Mapping
from contextlib import nullcontext
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


def test_move_table_says_something_of_every_state_and_names_no_other() -> None:
    for states, table in TABLES:
        assert set(table) == set(states)
        assert all(moves <= set(states) for moves in table.values())
        assert all(state not in moves for state, moves in table.items())


def test_check_move_allows_exactly_what_the_table_lists() -> None:
    for states, table in TABLES:
        for before, after in itertools.product(states, states):
            refused = nullcontext() if after in table[before] else pytest.raises(IllegalMove)
            with refused:
                check_move(table, before, after)


def test_every_state_leads_to_a_final_one() -> None:
    for states, table in TABLES:
        final = {state for state, moves in table.items() if not moves}
        for start in states:
            seen, front = {start}, [start]
            while front:
                front = [after for state in front for after in table[state] if after not in seen]
                seen |= set(front)
            assert seen & final, start


def test_final_job_states_are_those_of_the_api() -> None:
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED} == FINAL_JOB_STATES


def test_every_reason_has_a_fault() -> None:
    assert set(FAULTS) == set(Reason)
    assert set(FAULTS.values()) == set(Fault)


def test_reason_of_exit_tells_programs_from_signals() -> None:
    programs, signals = (1, 127, 128, 193, 255), (134, 137, 192)
    table = {0: Reason.COMPLETED} | dict.fromkeys(programs, Reason.PROGRAM_ERROR)
    table |= dict.fromkeys(signals, Reason.KILLED_BY_SIGNAL)
    assert {code: reason_of_exit(code) for code in table} == table
