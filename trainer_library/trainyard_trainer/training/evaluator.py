"""The evaluator: evaluates each checkpoint of the chief concurrently with training.

It is not part of the cluster: it only reads the checkpoints in job-dir, so that training does not wait for it. Its
TensorBoard curves are in job-dir/logs/evaluator.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from trainyard_trainer.arguments import Arguments
from trainyard_trainer.data.datasets import Shard
from trainyard_trainer.errors import exit_now
from trainyard_trainer.models.task import TrainingTask
from trainyard_trainer.output.index import CheckpointEntry
from trainyard_trainer.output.report import report
from trainyard_trainer.output.saving import Saver
from trainyard_trainer.output.summaries import TensorBoard
from trainyard_trainer.processes.cluster import ClusterSpec
from trainyard_trainer.training import state
from trainyard_trainer.training.experiment import Experiment, prepare
from trainyard_trainer.training.state import START, TrainingPosition
from trainyard_trainer.training.steps import evaluated_variables, make_evaluation_step
from trainyard_trainer.training.strategy import Strategy

log = logging.getLogger("trainer")

POLL = 2.0  # seconds between two polls of job-dir
PATIENCE = 600.0  # seconds without a new checkpoint after which a message is logged
STOP_SECONDS = 5.0  # after SIGTERM, for a bucket to respond


class _StopRequestedError(Exception):
    """SIGTERM, and this is not the checkpoint of the last epoch."""


def evaluate_checkpoints(arguments: Arguments, strategy: Strategy, task: TrainingTask) -> None:
    """Evaluate each checkpoint on the held-out examples, until the one of the last epoch.

    After SIGTERM, only that one still is, if training has ended. Else the process ends at once, as a restart of the job
    would wait for it; the next start begins with the oldest. Checkpoints that the chief has removed before they were
    evaluated (see --keep) are skipped with a warning.
    """
    received, stopped = threading.Event(), threading.Event()
    saver = Saver(arguments.job_dir, 0, arguments.keep)
    summaries = TensorBoard(arguments.job_dir, 0)
    prepared: Experiment | None = None
    evaluated: int | None = None

    def has_ended() -> bool:
        if prepared is None:  # the data says how many steps there are
            return saver.has_model()
        entries = saver.checkpoints()
        return bool(entries) and not prepared.steps_left(TrainingPosition(**entries[-1].position))

    def on_sigterm() -> None:
        with contextlib.suppress(Exception):  # such as of a bucket that is away
            if ThreadPoolExecutor(1).submit(has_ended).result(STOP_SECONDS):
                stopped.set()
                return
        try:
            log.info("Stopped before the end of training; the same command evaluates its checkpoints.")
            report("stopped", step=evaluated or 0, steps=evaluated or 0)
            summaries.close(STOP_SECONDS)
        finally:
            exit_now(0)

    _watch_sigterm(received, on_sigterm)
    shard = Shard(0, 1, strategy.local_replicas * strategy.accumulate)
    experiment = prepared = prepare(arguments, task, ClusterSpec("evaluator"), strategy, shard, "data")
    step = make_evaluation_step(experiment.model, strategy)
    shapes = state.state_shapes(experiment.model, experiment.optimizer(START))
    log.info("Waiting for checkpoints in %s.", arguments.job_dir)
    position: TrainingPosition | None = None
    waited = 0.0
    finished = False

    def check_stop() -> None:
        if received.is_set():
            stopped.wait()  # or the process ends
            if position is not None and experiment.steps_left(position):
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
                variables = strategy.replicate(evaluated_variables(restored))
                experiment.evaluate(step, variables, position, summaries, "evaluator", check_stop)
        except _StopRequestedError:
            continue
        if entry is not None and arrays is None:
            log.warning("The checkpoint of step %d was removed before its evaluation: raise --keep.", entry.step)
        if entry is not None:
            evaluated, waited = entry.step, 0.0
            finished = finished or (arrays is not None and position is not None and not experiment.steps_left(position))
            continue
        stopped.wait(0.0 if finished else POLL)
        waited += POLL
        if waited >= PATIENCE:
            log.info("Still waiting for a checkpoint after step %s.", evaluated)
            waited = 0.0
    summaries.close()
    if stopped.is_set():
        report("stopped", step=evaluated or 0, steps=evaluated or 0)


def _watch_sigterm(received: threading.Event, function: Callable[[], None]) -> None:
    """Call a function in a thread at SIGTERM, whatever the main thread does, such as to compile."""
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: received.set())
    signal.set_wakeup_fd(sending)  # written to at once, where handlers wait for the main thread

    def watch() -> None:
        while os.read(receiving, 1)[0] != signal.SIGTERM:
            pass
        received.set()
        function()

    threading.Thread(target=watch, name="sigterm", daemon=True).start()


def _next(entries: list[CheckpointEntry], evaluated: int | None, newest: bool) -> CheckpointEntry | None:
    """The oldest entry that is newer than the last evaluated one, or the newest."""
    newer = [entry for entry in entries if evaluated is None or entry.step > evaluated]
    return newer[-1 if newest else 0] if newer else None
