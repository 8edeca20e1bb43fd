import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_cli.output.log.live_log import HOLD_S, LiveLog, ShownLine, TextLine
from trainyard_cli.output.log.pace import Pace, left_text, rate_text, silent_text
from trainyard_protocol.answers.jobs import JobDetail, ReplicaView, RunView
from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.states import JobState, ReplicaState, RunState
from unit.cli.terminal import NOON, after, entry

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
DIGITS = (CHIEF, WORKER)


def progress(task: str = CHIEF, at: float = 0, event: str = "progress", **fields: Any) -> LogEntry:
    return entry(json.dumps({"event": event, **fields}), task, at)


def detail(state: JobState = JobState.RUNNING, gang: Sequence[str] = DIGITS, **changes: Any) -> JobDetail:
    replicas = tuple(ReplicaView(task=task, state=ReplicaState.RUNNING, machine_type="m") for task in gang)
    runs = [
        RunView(run_id=f"r{n}", number=n, state=RunState.RUNNING, agent="a", created_at=NOON, replicas=replicas)
        for n in (1, 2)
    ]
    job = {"jobId": "j", "createTime": NOON.isoformat()}
    return JobDetail(**({"job": job, "state": state, "runs": runs[:1]} | changes))


def view(*entries: LogEntry, gang: Sequence[str] = DIGITS) -> tuple[LiveLog, list[str]]:
    """The view of a job after these lines, a moment later, and the lines that it printed."""
    log = LiveLog()
    log.status(detail(gang=gang))
    for one in entries:
        log.add(one, NOON)
    return log, shown(log.due(after(HOLD_S)))


def shown(lines: Sequence[ShownLine]) -> list[str]:
    texts = []
    for line in lines:
        who = f"{line.who}: " if line.who else ""
        if isinstance(line, TextLine):
            texts.append(f"{who}{line.text}" + (f" ({line.replicas})" if line.replicas > 1 and not line.who else ""))
        else:
            texts.append(who + "  ".join((line.heading, *line.values)))
    return texts


def test_epochs_and_evaluations_are_one_line_each_and_other_progress_is_none() -> None:
    epoch: dict[str, Any] = {"steps": 4, "epochs": 2, "examples_per_second": 900.5}
    _, lines = view(
        entry('{"event": "start", "stacks": "SIGUSR1"}'),
        progress(step=0, event="begin"),
        progress(step=1, epoch=1, loss=1.5, accuracy=0.25, **epoch),
        progress(step=1, epoch=1, loss=1.5, accuracy=0.25, **epoch, task=WORKER),
        progress(step=2, epoch=1, loss=0.5, accuracy=0.75, **epoch),
        progress(event="checkpoint", step=2),
        progress(event="evaluation", step=2, epoch=1, held_out_loss=0.625, held_out_accuracy=0.5),
        progress(step=3, epoch=2, loss=0.25, accuracy=1, **epoch),
        progress(step=3, epoch=2, loss=0.25, accuracy=1, **epoch, task=WORKER),
        progress(event="heartbeat", step=3),
        progress(step=4, epoch=2, loss=0.125, accuracy=1, **epoch),
        progress(event="done", step=4),
    )
    assert lines == [
        "epoch 1/2  loss 0.500, held_out 0.625  accuracy 0.750, held_out 0.500",
        "epoch 2/2  loss 0.125  accuracy 1.000",
    ]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [([progress(epoch=e, step=e, loss=e, val_loss=2 * e) for e in (1, 2)],
     ["epoch 1  loss 1.000, val 2.000", "epoch 2  loss 2.000, val 4.000"]), ([progress(epoch=e / 2, step=e,
     loss=e) for e in range(1, 5)], ["epoch 0.5  loss 1.000", "epoch 1.5  loss 3.000"]), ([progress(step=s, loss=s,
     val_loss=0.5) for s in range(5)], ["step 0  loss 0, val 0.500"]), ([progress(step=1, loss=1),
     progress("evaluator-replica-0", event="eval", step=1, score=3)], ["evaluator: step 1  score 3.000"]),
     ([progress(step=s, loss=s) for s in range(5)], []), ([progress(WORKER, step=1, epoch=1, loss=1),
     progress(WORKER, step=2, epoch=2, loss=2)], ["epoch 1  loss 1.000"]), ([progress(step=1, epoch=1,
     loss=float("nan")), progress(event="stopped", step=1)], ["epoch 1  loss nan"])],
)  # fmt: skip
def test_metrics_lines_of_programs_that_report_in_other_ways(entries: list[LogEntry], expected: list[str]) -> None:
    assert view(*entries)[1] == expected


@pytest.mark.parametrize(
    ("texts", "expected", "live"),
    [(["Epoch 1/2", "40/80 ━━━━━━ 1s 8ms/step - accuracy: 0.5 - loss: 0.75",
     "80/80 ━━━━━━━━━━━━ 1s 8ms/step - accuracy: 0.5 - loss: 0.5 - val_accuracy: 0.625 - val_loss: 0.25", "Epoch 2/2",
     "40/80 ━━━━━━ 1s 8ms/step - accuracy: 0.75 - loss: 0.125"],
     ["epoch 1/2  loss 0.500, val 0.250  accuracy 0.500, val 0.625"], "120/160 epoch 2/2 loss 0.125"),
     ([f"Epoch {e}: {d}%|███  | {d}/100 [00:03<00:04, 12.3it/s, loss={e / d}]" for e in (1, 2) for d in (50, 100)],
     ["epoch 1  loss 0.010"], "200/200 epoch 2 loss 0.020"),
     ([f"Epoch [{e}/2], Step [{n}/4], Loss: {e / n}" for e in (1, 2) for n in (2, 4)], ["epoch 1/2  loss 0.250"],
     "8/8 epoch 2/2 loss 0.500"), ([f"Epoch {e}: train loss {e / 8} val acc 0.5" for e in (1, 2)],
     ["epoch 1  train_loss 0.125  val_acc 0.500", "epoch 2  train_loss 0.250  val_acc 0.500"],
     "2 epoch 2 train_loss 0.250"), (["Epoch 1/2:  95%|███  | 95/100 [00:03<00:04, 12.3it/s, loss=0.5]",
     "epoch 1: val_loss=0.25", "Epoch 1/2: 100%|████ | 100/100 [00:04<00:00, 12.3it/s, loss=0.5]",
     "Epoch 2/2:   1%|     | 1/100 [00:00<00:04, 12.3it/s, loss=0.125]"], ["epoch 1/2  loss 0.500, val 0.250"],
     "101/200 epoch 2/2 loss 0.125"), (["Epoch 1: train loss 0.5", "Test accuracy: 0.93"], ["Test accuracy: 0.93"],
     "1 epoch 1 train_loss 0.500"), (["max epoch: 5", "Epoch 1 begins"], ["max epoch: 5", "Epoch 1 begins"], "None")],
)  # fmt: skip
def test_bars_and_lines_of_numbers_are_progress(texts: list[str], expected: list[str], live: str) -> None:
    log, lines = view(*map(entry, texts), gang=[CHIEF])
    state = log.state(NOON)
    assert state is not None
    step = f"{state.step}/{state.steps}" if state.steps else f"{state.step}"
    assert (lines, step + (f" epoch {state.epoch} {state.metric}" if state.epoch else "")) == (expected, live)


def test_last_metrics_of_a_job_without_epochs_are_printed_at_its_end_alone() -> None:
    log, lines = view(progress(step=1, steps=9, loss=3), progress(step=9, steps=9, loss=2), gang=[CHIEF])
    assert (lines, shown(log.rest(NOON))) == ([], [])
    log.status(detail(JobState.SUCCEEDED))
    assert shown(log.rest(NOON)) == ["step 9/9  loss 2.000"]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [([entry("a"), entry("a", WORKER)], ["a (2)"]), ([entry("a"), entry("b", WORKER)], ["master: a", "worker-0: b"]),
     ([entry("Process 0 of 2"), entry("Process 1 of 2", WORKER)], ["Process 0,1 of 2 (2)"]),
     ([entry("rank 0, 0 errors"), entry("rank 1, 0 errors", WORKER)], ["rank 0,1, 0 errors (2)"]), ([entry("loss 3"),
     entry("loss 4", WORKER)], ["master: loss 3", "worker-0: loss 4"]), ([entry("rank 0", severity="ERROR"),
     entry("rank 1", WORKER, severity="ERROR")], ["master: rank 0", "worker-0: rank 1"]), ([entry("a",
     severity="ERROR"), entry("a", WORKER, severity="ERROR")], ["a (2)"]), ([entry("a"), entry("a", WORKER,
     severity="WARNING")], ["master: a", "worker-0: a"]), ([entry("a"), entry("b"), entry("b", WORKER), entry("a",
     WORKER)], ["master: a", "b (2)", "worker-0: a"]), ([entry("Job j is queued.", "service"), entry("a"), entry("a",
     WORKER)], ["service: Job j is queued.", "a (2)"]), ([entry("a", "service"), entry("a"), entry("a", WORKER)],
     ["service: a", "a (2)"]), ([entry("Installing x.tar.gz.", "service", routine=True), entry("a", "service")],
     ["service: a"]), ([entry('{"event": "saved", "model": "/out"}')], ["master: saved  model /out"]),
     ([entry('{"event": "x", "of": [1]}'), entry('{"event": "progress", "step": 1', WORKER)],
     ['master: {"event": "x", "of": [1]}', 'worker-0: {"event": "progress", "step": 1']), ([progress(step=1),
     entry('{"event": "progress", "step": 1}', severity="ERROR")], ["master: progress  step 1"]), ([entry("a", run=2),
     entry("a", WORKER, run=2), entry("b", WORKER, run=2)], ["#2: a", "worker-0#2: b"])],
)  # fmt: skip
def test_lines_are_printed_once_for_replicas_that_agree(entries: list[LogEntry], expected: list[str]) -> None:
    log = LiveLog()
    both = detail()
    log.status(both.model_copy(update={"runs": (*both.runs, both.runs[0].model_copy(update={"number": 2}))}))
    for one in entries:
        log.add(one, NOON)
    assert shown(log.due(after(HOLD_S))) == expected


def test_lines_of_some_of_many_replicas_name_them_or_their_number() -> None:
    gang = [CHIEF, *(f"worker-replica-{n}" for n in range(5))]
    two = [entry("a", gang[1]), entry("a", gang[4])]
    everyone = [entry(f"rank {rank}", task) for rank, task in enumerate(gang)]
    three = [entry("c", task) for task in gang[:3]]
    _, lines = view(*two, *everyone, *three, gang=gang)
    assert lines == ["worker-0, worker-3: a", "rank 0-5 (6)", "3 of 6 replicas: c"]


@given(st.lists(st.tuples(st.sampled_from((*DIGITS, "worker-replica-1")), st.sampled_from("abc01"), st.booleans())))
def test_every_line_is_printed_in_the_order_of_its_replica(given: list[tuple[str, str, bool]]) -> None:
    gang = (*DIGITS, "worker-replica-1")
    log = LiveLog()
    log.status(detail(gang=gang))
    printed: list[ShownLine] = []
    for number, (task, text, due) in enumerate(given):
        log.add(entry(text, task, severity="ERROR"), after(number))
        printed += log.due(after(number)) if due else []
    printed += log.rest(after(len(given)))
    for task in gang:
        own = [line.text for line in printed if isinstance(line, TextLine) and task in line.tasks]
        assert own == [text for name, text, _ in given if name == task]


def test_state_has_step_speed_and_time_left_of_the_first_replica_that_reports() -> None:
    log, _ = view(
        progress(WORKER, step=3, steps=100, loss=9),
        *(progress(step=10 * n, steps=100, epoch=n, epochs=5, loss=1 / n, at=n) for n in (1, 2, 3)),
    )
    state = log.state(after(3))
    assert state is not None
    assert (state.step, state.steps, state.done, state.epoch) == (30, 100, 0.3, "3/5")
    assert (state.metric, state.steps_per_s, state.left_s, state.silent_s) == ("loss 0.333", 10, 7, None)


def test_silence_is_measured_by_the_clock_of_the_replicas() -> None:
    """The clock of this machine is a minute ahead. The lines that were there before say nothing of that."""
    log, _ = view(progress(step=1, steps=9, at=-30), progress(step=2, steps=9, at=-20))
    log.add(progress(step=3, steps=9, at=-9), after(50))
    state = log.state(after(52))
    assert state is not None
    assert state.silent_s is None


def test_state_of_a_new_run_begins_anew() -> None:
    log, _ = view(progress(step=50, steps=100, loss=1))
    runs = (*detail().runs, detail().runs[0].model_copy(update={"number": 2}))
    log.status(detail(runs=runs))
    state = log.state(NOON)
    assert state is not None
    assert (state.step, state.words) == (None, ("2 of 2 replicas running", "run 2"))


def pace(*reports: tuple[float, int]) -> Pace:
    made = Pace()
    for at, step in reports:
        made.add(step, NOON + timedelta(seconds=at))
    return made


@pytest.mark.parametrize(
    ("reports", "speed"),
    [
        ([], None),
        ([(0, 0)], None),
        ([(0, 0), (10, 10)], 1),
        ([(0, 0), (60, 10), (61, 20)], 10),  # the first step is compiled
        ([(0, 0), (60, 10), (61, 20), (62, 20)], 10),  # a heartbeat
        ([*((n, n) for n in range(100)), (200, 101), *((200 + n, 101 + 2 * n) for n in range(1, 20))], 2),  # a pause
        ([(0, 50), (10, 60), (20, 0), (30, 40)], 4),  # a new run
        ([(0, 1), (1, 2), (1, 3), (1, 4)], 3),  # several in one instant
    ],
)
def test_speed_is_that_of_the_last_reports(reports: list[tuple[float, int]], speed: float | None) -> None:
    assert pace(*reports).steps_per_s == speed


def test_texts_are_short() -> None:
    assert [left_text(s) for s in (6, 66, 3726, 100_000)] == ["0:06 left", "1:06 left", "1:02:06 left", "1 d 3 h left"]
    assert [silent_text(s) for s in (40, 720, 20_000)] == ["no step for 40 s", "no step for 12 min", "no step for 5 h"]
    assert [rate_text(r) for r in (8.25, 0.5, 0.1, 12_345)] == [
        "8.2 steps/s",
        "0.5 steps/s",
        "10.0 s/step",
        "1.23e+04 steps/s",
    ]
