"""The evaluator: evaluates each checkpoint of the chief concurrently with training.

It is not part of the cluster: it only reads the checkpoints in job-dir, so that training does not wait for it. Its
TensorBoard curves are in job-dir/logs/evaluator.
"""

import logging
import signal
import threading
from typing import TYPE_CHECKING

from trainer import state
from trainer.cluster import ClusterSpec
from trainer.data.datasets import Shard
from trainer.experiment import prepare
from trainer.output.index import CheckpointEntry
from trainer.output.report import report
from trainer.output.saving import Saver
from trainer.output.summaries import TensorBoard
from trainer.state import START, TrainingPosition
from trainer.steps import make_evaluation_step
from trainer.strategy import Strategy

if TYPE_CHECKING:
    from trainer.task import Arguments

log = logging.getLogger("trainer")

POLL = 2.0  # seconds between two polls of job-dir
PATIENCE = 600.0  # seconds without a new checkpoint after which a message is logged


class _StopRequestedError(Exception):
    """SIGTERM, while training has not ended."""


def evaluate_checkpoints(arguments: "Arguments", strategy: Strategy) -> None:
    """Evaluate each checkpoint on the held-out examples, until the one of the last epoch.

    After SIGTERM, only that one still is: until training has ended, a restart of the job would wait for the evaluator,
    which then begins with the oldest. Checkpoints that the chief has removed before they were evaluated (see --keep)
    are skipped with a warning.
    """
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stopped.set())
    shard = Shard(0, 1, strategy.local_replicas * strategy.accumulate)
    experiment = prepare(arguments, ClusterSpec("evaluator"), strategy, shard, "data")
    saver = Saver(arguments.job_dir, 0, arguments.keep)
    step = make_evaluation_step(experiment.model, strategy)
    shapes = state.state_shapes(experiment.model, experiment.optimizer(START))
    summaries = TensorBoard(arguments.job_dir, 0)
    log.info("Waiting for checkpoints in %s.", arguments.job_dir)
    evaluated: int | None = None
    position: TrainingPosition | None = None
    waited = 0.0
    finished = False

    def check_stop() -> None:
        if stopped.is_set() and position is not None and experiment.steps_left(position):
            raise _StopRequestedError

    while not finished:
        finished = stopped.is_set()
        entry = _next(saver.checkpoints(), evaluated, newest=finished)
        position = TrainingPosition(**entry.position) if entry else None
        try:
            check_stop()
            arrays = saver.read(entry) if entry else None
            if position is not None and arrays is not None:
                restored = state.from_arrays(shapes, arrays)
                variables = strategy.replicate((restored.params, restored.statistics))
                experiment.evaluate(step, variables, position, summaries, "evaluator", check_stop)
        except _StopRequestedError:
            if finished:  # not even the newest is the last
                log.info("Stopped before the end of training; the same command evaluates its checkpoints.")
                break
            continue
        if entry is not None and arrays is None:
            log.warning(
                "The checkpoint of step %d was removed before its evaluation: raise --keep.", entry.step
            )
        if entry is not None:
            evaluated, waited = entry.step, 0.0
            finished = finished or (
                arrays is not None and position is not None and not experiment.steps_left(position)
            )
            continue
        stopped.wait(0.0 if finished else POLL)
        waited += POLL
        if waited >= PATIENCE:
            log.info("Still waiting for a checkpoint after step %s.", evaluated)
            waited = 0.0
    summaries.close()
    if stopped.is_set():
        report("stopped", step=evaluated or 0, steps=evaluated or 0)


def _next(entries: list[CheckpointEntry], evaluated: int | None, newest: bool) -> CheckpointEntry | None:
    """The oldest entry that is newer than the last evaluated one, or the newest."""
    newer = [entry for entry in entries if evaluated is None or entry.step > evaluated]
    return newer[-1 if newest else 0] if newer else None
