"""Work that runs have done again: where each begins, what is lost of those before it, and by which cause."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard_protocol.answers.jobs import ReplicaView, RunView, Verdict
from trainyard_protocol.states import Outcome, Reason, ReplicaState, RunState
from trainyard_server.domain.lifecycle.lost_work import continuation, lost_work, resumed_at

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)


def run(
    first: int | None, step: int | None, saved: int | None = None, reason: str = "PREEMPTED", **given: Any
) -> RunView:
    """A run of 100 s on 2 CPUs that saved at 90 s. `evaluates`: an evaluator beside it reports this step."""
    evaluates, gpus = given.pop("evaluates", None), given.pop("gpus", 0)
    durable_at = BEGIN + timedelta(seconds=90) if saved is not None else None
    steps = {"first_step": first, "step": step, "durable_step": saved, "durable_at": durable_at}
    shape: dict[str, Any] = {"state": ReplicaState.EXITED, "machine_type": "m", "vcpus": 2, "accelerator_count": gpus}
    shape |= {"started_at": BEGIN, "finished_at": BEGIN + timedelta(seconds=100)}
    replicas = [ReplicaView(task="master-replica-0", **shape, **steps)]
    if evaluates is not None:
        replicas.append(ReplicaView(task="evaluator-replica-0", **shape, first_step=evaluates, step=evaluates))
    verdict = Verdict(outcome=Outcome.FAILED, reason=Reason(reason), message="", exit_code=1)
    return RunView(
        run_id="r",
        number=1,
        state=RunState.ENDED,
        agent="a",
        created_at=BEGIN,
        verdict=verdict,
        replicas=tuple(replicas),
    )


def test_lost_work_is_what_later_runs_do_again() -> None:
    cases: Sequence[tuple[str, list[RunView], list[tuple[str, int, float]]]] = (
        ("one run", [run(1, 100, 50)], []),
        ("nothing yet", [run(1, 100, 50), run(None, None)], []),
        ("since the checkpoint", [run(1, 100, 50), run(51, 60)], [("preemption", 50, 20.0)]),
        ("that reports every 40 steps", [run(40, 120, 50), run(80, 80)], [("preemption", 70, 20.0)]),
        ("that was not announced", [run(1, 100), run(81, 90)], [("preemption", 20, 40.0)]),
        ("that was not read", [run(1, 100, 50), run(1, 10)], [("preemption", 100, 200.0)]),
        ("all is saved", [run(1, 100, 100), run(101, 110)], []),
        ("by cause", [run(1, 50, 50), run(51, 100, 90, "DRAINED"), run(91, 95, None, "HOST_LOST"), run(91, 99)],
         [("drain", 10, 20.0), ("lost machine", 5, 200.0)]),
        ("of older runs too", [run(1, 50), run(51, 100, None, "STALLED"), run(1, 9)], [("failure", 100, 400.0)]),
        ("a run without a step", [run(1, 50, 50), run(None, None, None, "VANISHED"), run(51, 60)],
         [("failure", 0, 200.0)]),
        ("no steps at all", [run(None, None), run(None, None)], []),
        ("an evaluator", [run(1, 100, 100), run(101, 110, evaluates=50)], []),
    )  # fmt: skip
    seen = {name: [(lost.cause, lost.steps, lost.seconds) for lost in lost_work(runs)] for name, runs, _ in cases}
    assert seen == {name: expected for name, _, expected in cases}
    assert [(lost.seconds, lost.unit) for lost in lost_work([run(1, 9, gpus=4), run(1, 1)])] == [(400.0, "GPU")]


def test_where_a_run_continues_in_words() -> None:
    assert resumed_at(51, [10, 50, 90]) == 50
    assert [resumed_at(first, []) for first in (0, 1, 1481)] == [0, 0, 1480]
    assert continuation(2, 1480, 1483) == "Run 2 continues at step 1,480: 3 steps are done again."
    assert continuation(3, 0, 1) == "Run 3 begins anew at step 0: 1 step is done again."
    assert continuation(2, 9, 9) == "Run 2 continues at step 9: no step is done again."
