"""StallDiagnosis of stalled runs: the replica that blocks the run, and the message."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.wire.observations import Stall
from trainyard_server.domain.lifecycle.stalls import StallDiagnosis, StalledReplica, check_labels, diagnose

CHIEF, WORKER_0, WORKER_1, PS = ("master-replica-0", "worker-replica-0", "worker-replica-1", "ps-replica-0")
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)

WAITS = """\
Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/site-packages/jax/_src/array.py", line 70 in block_until_ready
  File "/app/trainer/train.py", line 41 in train
  File "/app/trainer/task.py", line 99 in main
"""
LOADS = """\
Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 706 in readinto
  File "/app/trainer/data.py", line 88 in load
  File "/app/trainer/train.py", line 40 in train
"""
LOADS_BY_PY_SPY = """\
Process 12: /usr/bin/python3 -m trainer.task
Thread 12 (idle)
    readinto (/usr/lib/python3.11/socket.py:706)
    load (/app/trainer/data.py:88)
    <module> (<string>:1)
Thread 13 (idle): "heartbeat"
    wait (/usr/lib/python3.11/threading.py:320)
"""


def stands(task: str, step: int = 120, stacks: str = "", for_s: float = 312, longest_s: float = 4.1) -> StalledReplica:
    stall = Stall(step=step, since=NOW, limit_s=300, for_s=for_s, longest_s=longest_s)
    return StalledReplica(task, stall, stacks, steps=True)


def diagnosed(members: Sequence[StalledReplica]) -> StallDiagnosis:
    """The diagnosis, which there must be."""
    diagnosis = diagnose(members)
    assert diagnosis is not None
    return diagnosis


SILENT = Stall(step=0, since=NOW, limit_s=300, for_s=312, silent=True)
AT_DATA, UNKNOWN = " It is in trainer/data.py:88 load.", "Which replica holds it up cannot be told"
ROWS: dict[str, tuple[list[StalledReplica], str, str]] = {
    "the lowest step": (
        [stands(CHIEF, 121), stands(WORKER_0, 121), stands(WORKER_1, 120, LOADS)],
        WORKER_1,
        "worker-replica-1 stands still at step 120 for 312 s (it never took more than 4.1 s before); "
        f"the others wait at step 121.{AT_DATA}",
    ),
    "another place at the same step": (
        [stands(CHIEF, stacks=WAITS), stands(WORKER_0, stacks=LOADS), stands(WORKER_1, stacks=WAITS)],
        WORKER_0,
        f"the others wait at the same step.{AT_DATA}",
    ),
    "another place, by py-spy": (
        [stands(CHIEF, stacks=WAITS), stands(WORKER_0, stacks=LOADS_BY_PY_SPY), stands(WORKER_1, stacks=WAITS)],
        WORKER_0,
        f"the others wait at the same step.{AT_DATA}",
    ),
    "one that reports no steps": (
        [stands(CHIEF, stacks=WAITS), StalledReplica(WORKER_0, None, WAITS), StalledReplica(WORKER_1, None, LOADS)],
        WORKER_1,
        "worker-replica-1 holds the run up: master-replica-0 stands still at step 120",
    ),
    "the only one that stands still": (
        [
            StalledReplica(CHIEF, None, LOADS, steps=True),
            stands(WORKER_0, stacks=WAITS),
            StalledReplica(PS, None, WAITS),
        ],
        WORKER_0,
        "; 1 other goes on. It is in trainer/train.py:41 train.",
    ),
    "a stopped process": (
        [
            stands(CHIEF, stacks=WAITS),
            stands(WORKER_0, stacks=f"Process 77 is stopped, by SIGSTOP or a debugger.\n{WAITS}"),
        ],
        WORKER_0,
        "A process of it is stopped, by SIGSTOP or a debugger.",
    ),
    "no stacks": ([stands(CHIEF), stands(WORKER_0)], CHIEF, UNKNOWN),
    "two that differ": ([stands(CHIEF, stacks=WAITS), stands(WORKER_0, stacks=LOADS)], CHIEF, UNKNOWN),
    "all alike": ([stands(task, stacks=WAITS) for task in (CHIEF, WORKER_0, WORKER_1)], CHIEF, UNKNOWN),
    "silent and alone": (
        [StalledReplica(CHIEF, SILENT, LOADS)],
        CHIEF,
        f"master-replica-0 has printed nothing and used no CPU for 312 s.{AT_DATA}",
    ),
    "silent, at another place": (
        [*(StalledReplica(task, SILENT, WAITS) for task in (CHIEF, WORKER_0)), StalledReplica(WORKER_1, SILENT, LOADS)],
        WORKER_1,
        "used no CPU for 312 s, nor has another replica. It is in",
    ),
}


@pytest.mark.parametrize(("members", "odd", "says"), ROWS.values(), ids=ROWS)
def test_odd_one_is_named_with_what_it_does_or_the_primary_where_nothing_tells_them_apart(
    members: list[StalledReplica], odd: str, says: str
) -> None:
    diagnosis = diagnosed(members)
    assert diagnosis.task == odd
    assert says in diagnosis.message


JAX = '  File "/env/lib/python3.11/site-packages/jax/_src/api.py", line 2512 in block_until_ready'
RUNPY = '  File "<frozen runpy>", line 88 in _run_code'


def test_program_is_told_from_libraries_beside_it_and_from_its_launcher() -> None:
    head, site = ("Current thread 0x00007f0000000001 (most recent call first):", "/env/lib/python3.11/site-packages")
    package = f'  File "{site}/trainer/report.py", line 134 in add'
    main = f'  File "{site}/trainer/task.py", line 270 in <module>'
    script = '  File "/runs/1/program/train.py", line 12 in <module>'
    launcher = f'  File "{site}/train.py", line 134 in _run'
    for frames, place in (
        ((JAX, package, main, RUNPY), "trainer/report.py:134 add"),
        ((JAX, script, RUNPY, launcher, RUNPY), "program/train.py:12 <module>"),
    ):
        diagnosis = diagnosed([stands(CHIEF, stacks="\n".join([head, *frames, ""]))])
        assert diagnosis.message.endswith(f" It is in {place}.")


@pytest.mark.parametrize("limit", ["0", "10m", "-1", "", "1.5", "9999999999", "¹"])
def test_labels_that_say_nothing_are_refused(limit: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_labels({"trainyard_stall_limit": limit, "trainyard_stall_action": "panic"})
    assert "trainyard_stall_limit" in refused.value.message
    assert "must be restart or report; this is 'panic'" in refused.value.message
