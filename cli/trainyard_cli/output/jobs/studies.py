"""The table of a study's trials. Pure."""

from collections.abc import Sequence
from datetime import datetime

from trainyard_cli.output.jobs.formats import count, table
from trainyard_cli.output.log.log_screen import elapsed, local_time
from trainyard_cli.output.text.safe import without_control
from trainyard_protocol.answers.tuning import StudyView, TrialView
from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_protocol.states import FINAL_JOB_STATES

_NOTE_WIDTH = 72


def best_first(view: StudyView) -> list[TrialView]:
    """Sort by the metric that counts; then those without one, by number."""

    def order(trial: TrialView) -> tuple[bool, float, int]:
        value = trial.value or 0.0
        return trial.value is None, value if view.goal == "MINIMIZE" else -value, trial.number

    return sorted(view.trials, key=order)


def trials_text(view: StudyView, now: datetime) -> str:
    """A table of the trials, best first, with a column for each parameter."""
    names = [param.spec.parameter_name for param in HyperparameterSpec.model_validate(view.spec).located()]
    headers = ["TRIAL", "STATE", view.metric_tag, "STEP", *names, "STARTED", "TOOK", "NOTE"]
    rows = [_row(trial, names, now) for trial in best_first(view)]
    used = [column for column, header in enumerate(headers) if header != "NOTE" or any(row[column] for row in rows)]
    cells = [[without_control(row[column]) for column in used] for row in [headers, *rows]]
    return table(cells[0], cells[1:])


def _row(trial: TrialView, names: Sequence[str], now: datetime) -> list[str]:
    started = trial.started_at
    took = elapsed(started.isoformat(), trial.ended_at or now) if started is not None else "-"
    note = trial.error or trial.waiting or trial.activity
    if trial.stopped_early:
        note = note.removeprefix("The trial was ").removesuffix(".") or "stopped early"
    return [
        str(trial.number),
        str(trial.state),
        f"{trial.final.value:.6g}" if trial.final is not None else "-",
        str(trial.final.step) if trial.final is not None else "-",
        *(_shown(trial.parameters.get(name, "-")) for name in names),
        local_time(started.isoformat(), short=True) if started is not None else "-",
        took,
        note if len(note) <= _NOTE_WIDTH else f"{note[: _NOTE_WIDTH - 1]}…",
    ]


def _shown(value: str) -> str:
    """A value of a parameter, with six digits if it is a long number."""
    if len(value) <= 8:
        return value
    try:
        return f"{float(value):.6g}"
    except ValueError:
        return value


def unranked(view: StudyView) -> str:
    """A hint at metrics for trials that have no value; "" where they have."""
    if not view.reported or view.message:
        return ""
    return f"They reported {', '.join(view.reported)}: --metric NAME ranks them by one of these."


def totals(view: StudyView) -> str:
    """`5 of 12 trials ended, 1 of them failed. Best: trial 3.`"""
    ended = sum(number for state, number in view.counts.items() if state in FINAL_JOB_STATES)
    failed = f", {view.failed} of them failed" if view.failed else ""
    best = f" Best: trial {view.best}." if view.best is not None else ""
    if view.state in FINAL_JOB_STATES:
        return f"{count(ended, 'trial')}{failed}.{best}"
    planned = HyperparameterSpec.model_validate(view.spec).planned_trials
    return f"{ended} of {count(planned, 'trial')} ended{failed}.{best}"
