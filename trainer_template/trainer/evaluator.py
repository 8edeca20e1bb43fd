"""The evaluator: waits for the chief's checkpoints and evaluates each, beside the training and not in its time.

It is in nobody's cluster and only reads what the chief saves in job-dir, so training neither knows of it nor waits for
it. Its curves lie in job-dir/logs/evaluator.
"""

import logging
import signal
import threading
from typing import TYPE_CHECKING

from trainer import state
from trainer.cluster import Cluster
from trainer.data import Share
from trainer.experiment import prepare
from trainer.report import report
from trainer.saving import Entry, Saver
from trainer.state import Position
from trainer.steps import make_evaluation_step
from trainer.strategy import Strategy
from trainer.summaries import TensorBoard

if TYPE_CHECKING:
    from trainer.task import Arguments

log = logging.getLogger("trainer")

POLL = 2.0  # seconds between two looks at job-dir
PATIENCE = 600.0  # seconds without a new checkpoint after which it says that it still waits


def evaluate_checkpoints(arguments: "Arguments", strategy: Strategy) -> None:
    """Evaluate each checkpoint on the held-out examples, until the one of the last epoch, or SIGTERM.

    Checkpoints that the chief has let go of before it was their turn (see --keep) are passed over, and named.
    """
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stopped.set())
    share = Share(0, 1, strategy.local_replicas)
    experiment = prepare(arguments, Cluster("evaluator"), strategy, share, "data")
    saver = Saver(arguments.job_dir, 0, arguments.keep)
    step = make_evaluation_step(experiment.model, strategy)
    optimizer = experiment.optimizer(Position())
    summaries = TensorBoard(arguments.job_dir, 0)
    log.info("Waiting for checkpoints in %s.", arguments.job_dir)
    evaluated = position = None
    waited = 0.0
    while not stopped.is_set():
        entry = _next(saver.checkpoints(), evaluated)
        data = saver.read_checkpoint(entry) if entry else None
        if entry is not None and data is not None:
            restored, position = state.restore(experiment.model, optimizer, data)
            variables = strategy.start((restored.params, restored.statistics))
            experiment.evaluate(step, variables, position, summaries, "evaluator")
        elif entry is not None:
            log.warning("The checkpoint of step %d went before it was its turn: raise --keep.", entry.step)
        if entry is not None:
            evaluated, waited = entry.step, 0.0
            if position is not None and position.epochs >= arguments.epochs:
                break
            continue
        stopped.wait(POLL)
        waited += POLL
        if waited >= PATIENCE:
            log.info("Still waiting for a checkpoint after step %s.", evaluated)
            waited = 0.0
    summaries.close()
    if stopped.is_set():
        report("stopped", step=evaluated or 0, steps=evaluated or 0)


def _next(entries: list[Entry], evaluated: int | None) -> Entry | None:
    """The oldest that is newer than the one evaluated last."""
    newer = [entry for entry in entries if evaluated is None or entry.step > evaluated]
    return newer[0] if newer else None
