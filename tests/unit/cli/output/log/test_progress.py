"""`jobs describe` on runs and steps: progress, work at risk, lost work, metrics, stacks."""

import math
from datetime import UTC, datetime, timedelta

from trainyard_cli.output.jobs.job_texts import _run_lines
from trainyard_cli.output.log.progress import lines
from trainyard_protocol.answers.jobs import CONTINUED, EventView, JobDetail, LostWork, ReplicaView, RunView, Verdict
from trainyard_protocol.answers.metrics import CurveDigest, JobMetric, MetricsDigest
from trainyard_protocol.states import JobState, Outcome, Reason, ReplicaState, RunState
from trainyard_protocol.wire.observations import Stall

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
CHIEF, WORKER = "master-replica-0", "worker-replica-0"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def replica(task: str = CHIEF, **fields: object) -> ReplicaView:
    return ReplicaView(
        task=task, state=ReplicaState.RUNNING, machine_type="local-1", cpus=(0,), gpus=(), memory_bytes=1, **fields
    )


def run(number: int, *replicas: ReplicaView, failed: bool = False) -> RunView:
    verdict = Verdict(outcome=Outcome.FAILED, reason=Reason.STALLED, message="why.", replica=WORKER)
    return RunView(
        run_id=f"r{number}", number=number, state=RunState.ENDED if failed else RunState.RUNNING, agent="laptop",
        created_at=T0, verdict=verdict if failed else None, replicas=replicas,
    )  # fmt: skip


def shown(*runs: RunView, state: JobState = JobState.RUNNING, **fields: object) -> list[str]:
    return lines(JobDetail(job={}, state=state, runs=runs, **fields), at(100))


def test_steps_and_time_since_the_last_checkpoint_are_at_risk() -> None:
    assert shown(run(1, replica()), run(2, replica(), failed=True)) == shown() == []
    chief = replica(step=120, steps=5000, step_at=at(95), durable_step=100, durable_at=at(40))
    (line,) = shown(run(1, chief, replica(WORKER, step=119)))
    assert line.startswith("Step 120 of 5000. Last checkpoint: step 100, at ")
    assert line.endswith(" At risk: 20 steps, 01:00.")
    assert shown(run(1, replica(step=3))) == ["Step 3. No checkpoint was reported yet: a failure would lose all steps."]
    (line,) = shown(run(1, replica(step=100, durable_step=100, durable_at=at(99))))
    assert line.endswith("Nothing is at risk.")


def test_failed_run_shows_the_lost_steps_and_where_the_next_run_continues() -> None:
    first = run(1, replica(step=121, steps=500, durable_step=100, durable_at=at(10)), replica(WORKER), failed=True)
    second = run(2, replica(first_step=100, step=101, steps=500))
    message = "Run 2 continues at step 100: 21 steps are done again."
    event = EventView(number=9, time=T0, kind=CONTINUED, message=message, run=2)
    again = LostWork(cause="failure", steps=1021, seconds=4321.6, unit="GPU")
    lost, now, *table = shown(first, second, events=(event,), lost=(again,))
    assert table == ["DONE AGAIN AFTER  STEPS  GPU-SECONDS", "failure           1,021  4,322"]
    assert lost == (
        "Run 1 (STALLED, worker-replica-0) ended at step 121 of 500. "
        "Last checkpoint: step 100; 21 steps lost. Run 2 continues at step 100: 21 steps are done again."
    )
    assert now.startswith("Step 101 of 500. Last checkpoint: step 100, at ")  # of the run before


def test_stalled_replicas_are_shown_with_stacks_without_control_characters() -> None:
    stall = Stall(step=7, since=at(1), limit_s=30)
    hanging = replica(step=7, stall=stall, stacks="Thread 1\n\x1b[2J    load (data.py:88)\n" + "x\n" * 50)
    _, stands, was, *stack = shown(run(1, hanging))
    assert stands.startswith("master-replica-0 is stalled at step 7 since ")
    assert was == "Stacks of master-replica-0:"
    assert stack[:2] == ["  Thread 1", "      load (data.py:88)"]
    assert stack[-1] == "  ..."
    assert len(stack) == 13


def test_newest_metrics_are_one_line_for_all_replicas() -> None:
    loss = CurveDigest(name="loss", step=120, value=0.31)
    rate = CurveDigest(name="examples_per_second", step=120, value=1203.4567)
    chief = replica(step=120, metrics=MetricsDigest(main="loss", epoch=2, epochs=5, metrics=(loss, rate)))
    other = CurveDigest(name="loss", step=120, value=7)
    held_out = CurveDigest(name="held_out_loss", step=100, value=math.nan)
    evaluator = replica("evaluator-replica-0", metrics=MetricsDigest(metrics=(other, held_out)))
    assert shown(run(1, chief, evaluator))[1:] == [
        "Metrics: loss 0.31, examples_per_second 1203.46, held_out_loss nan (epoch 2 of 5)."
    ]
    assert shown(run(1, replica(metrics=MetricsDigest(epoch=1)))) == []


def test_metrics_of_the_job_come_before_those_of_its_replicas() -> None:
    printed = CurveDigest(name="loss", step=1500, value=0.7)
    only = run(1, replica(metrics=MetricsDigest(main="loss", epoch=2, metrics=(printed,))))
    logged = (JobMetric(name="loss", step=20, last=0.68), JobMetric(name="auc", step=20, last=0.9))
    detail = JobDetail(job={}, state=JobState.RUNNING, runs=(only,), metrics=logged)
    assert lines(detail, at(100))[-1] == "Metrics: loss 0.68, auc 0.9 (epoch 2)."


NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_replicas_in_an_engine_have_amounts_and_what_they_wait_for() -> None:
    given = {"machine_type": "n1-standard-4", "vcpus": 4, "memory_bytes": 15 * 10**9}
    gpus = {"accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 2}
    made = RunView.model_validate(
        {
            "run_id": "r",
            "number": 1,
            "state": "PREPARING",
            "agent": "west",
            "created_at": NOW,
            "runtime": "kubernetes",
            "replicas": [
                {"task": "master-replica-0", "state": "RUNNING", **given, **gpus},
                {"task": "worker-replica-0", "state": "STARTING", "waits": "no room", **given},
            ],
        }
    )
    text = "\n".join(_run_lines(made, 1, NOW))
    assert "In a Kubernetes cluster." in text
    assert "4 vCPU, 2 x NVIDIA_TESLA_T4" in text
    assert text.endswith("  worker-replica-0 waits: no room")
