"""The idle rule of a job that waits."""

import pytest

from trainyard_cli.capabilities.attachments.dev.waiter import (
    ReplicaProcess,
    UseSample,
    in_words,
    is_attached,
    is_idle,
    used_between,
)

SUPERVISOR, OWN = 10, 11


def process(parent: int, *, leads: bool = False, terminal: bool = False, cpu_s: float = 0.0) -> ReplicaProcess:
    return ReplicaProcess(parent, leads, terminal, started=7, cpu_s=cpu_s)


def samples(*values: tuple[float, bool, float]) -> list[UseSample]:
    return [UseSample(*value) for value in values]


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        (samples((0, False, 0), (59, False, 0)), False),
        (samples((0, False, 0), (60, False, 0)), True),
        (samples((0, False, 0), (30, True, 0), (60, False, 0)), False),
        (samples((0, True, 0), (60, False, 0)), False),
        (samples((0, True, 0), (1, False, 0), (61, False, 0)), True),
        (samples((0, False, 0), (60, False, 0.59)), True),
        (samples((0, False, 0), (60, False, 0.6)), False),
        (samples((0, False, 0), (1, False, 50), (61, False, 50.5)), True),
    ],
)
def test_replica_is_idle_without_attachment_and_cpu_for_the_whole_time(given: list[UseSample], idle: bool) -> None:
    assert is_idle(given, 60) is idle


def test_command_beside_the_program_is_attached_and_what_it_has_left_is_not() -> None:
    machine = {SUPERVISOR: process(1), OWN: process(SUPERVISOR)}
    container = {1: process(0), OWN: process(1)}
    cases = {
        "nothing else": (machine, False),
        "shell on a terminal": ({**machine, 20: process(5, leads=True, terminal=True)}, True),
        "program of that shell": ({**machine, 21: process(SUPERVISOR, terminal=True)}, False),
        "daemon that the shell has left": ({**machine, 22: process(1, leads=True)}, False),
        "terminal of a notebook": (
            {**machine, 23: process(OWN, leads=True), 24: process(23, leads=True, terminal=True)},
            False,
        ),
        "container": (container, False),
        "command in a container": ({**container, 30: process(0)}, True),
        "orphan in a container": ({**container, 31: process(1, leads=True)}, False),
        "program as the first process of its container": ({OWN: process(0)}, False),
    }
    assert {name: is_attached(processes, OWN) for name, (processes, _) in cases.items()} == {
        name: attached for name, (_, attached) in cases.items()
    }


def test_cpu_of_all_others_counts_also_of_a_process_that_is_new_or_has_an_old_number() -> None:
    before = {OWN: process(SUPERVISOR), 20: process(5, cpu_s=2), 21: process(5, cpu_s=9)}
    again = process(5, cpu_s=1)._replace(started=8)
    after = {OWN: process(SUPERVISOR, cpu_s=50), 20: process(5, cpu_s=3), 21: again, 22: process(5, cpu_s=4)}
    assert used_between(before, after, OWN) == 1 + 1 + 4


def test_durations_are_in_their_largest_unit() -> None:
    assert [in_words(seconds) for seconds in (3600, 5400, 90, 1)] == ["1 h", "90 min", "90 s", "1 s"]
