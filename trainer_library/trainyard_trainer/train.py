"""Synchronous training: every replica runs the same steps, with gradients averaged over all replicas."""

import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax

from trainyard_trainer import distribute, state
from trainyard_trainer.arguments import Arguments
from trainyard_trainer.cluster import ClusterError, ClusterSpec
from trainyard_trainer.data.datasets import Shard
from trainyard_trainer.data.sharding import read
from trainyard_trainer.experiment import Experiment, prepare
from trainyard_trainer.output.histograms import Histograms
from trainyard_trainer.output.profile import StepProfiler
from trainyard_trainer.output.report import Progress, report
from trainyard_trainer.output.saving import Saver
from trainyard_trainer.output.summaries import NoSummaries, Summaries, TensorBoard, report_to_tuning_service
from trainyard_trainer.state import State, TrainingPosition
from trainyard_trainer.steps import make_evaluation_step, make_train_step, no_sums
from trainyard_trainer.strategy import Strategy, copy_on_device, prefetch

log = logging.getLogger("trainer")

SHORT_STEPS_AHEAD = 8  # with several CPU devices in a process, XLA's thread pool can deadlock


class _StopRequestedError(Exception):
    """SIGTERM."""


def train(arguments: Arguments, cluster: ClusterSpec, strategy: Strategy) -> None:
    """Train to the end or until SIGTERM, resuming from the newest checkpoint. All processes call this together."""
    should_stop = distribute.make_stop_check()
    if arguments.save_seconds and not strategy.whole:
        raise ClusterError(
            "--save-seconds needs the whole state in the chief. With --parallel fsdp and workers, all processes save "
            "together: choose --checkpoint-every."
        )
    if arguments.early_stopping and not arguments.evaluate_every:
        raise ClusterError("--early-stopping needs evaluations, and --evaluate-every 0 leaves them to an evaluator.")
    # A piece of --accumulate is to the data what a further replica would be.
    pieces = strategy.local_replicas * strategy.accumulate
    shard = Shard(cluster.process_id, cluster.num_processes, pieces)
    experiment = prepare(arguments, cluster, strategy, shard, arguments.sharding)
    with Saver(arguments.job_dir, cluster.process_id, arguments.keep, arguments.save_seconds) as saver:
        _train(experiment, saver, should_stop)


def _train(experiment: Experiment, saver: Saver, should_stop: Callable[[], bool]) -> None:
    arguments, cluster, strategy = experiment.arguments, experiment.cluster, experiment.strategy
    restored, position, optimizer = experiment.restore_or_initialize(saver)
    training = strategy.replicate(restored)
    del restored  # else the host would keep a second copy to the end
    function = experiment.export_function()
    train_step = make_train_step(experiment.model, optimizer, strategy, arguments.seed)
    evaluation_step = make_evaluation_step(experiment.model, strategy)
    steps = position.steps + experiment.steps_left(position)
    report("begin", step=position.steps, steps=steps)
    log.info("Replicas in sync: %d (%d local).", strategy.replicas_in_sync, strategy.local_replicas)
    global_batch = arguments.batch_size * experiment.shard.replicas
    log.info("%d of %d steps done; the global batch is %d examples.", position.steps, steps, global_batch)

    def save(training: State, position: TrainingPosition, score: float | None = None) -> None:
        saver.make_room(position.steps, score)
        if cluster.is_chief or not strategy.whole:  # all processes together gather a state that is divided
            fetch = _snapshot(strategy, training)
        if cluster.is_chief:
            on_saved = partial(report, "checkpoint", step=position.steps)
            saver.save(position._asdict(), lambda: state.to_arrays(fetch()), on_saved, score)
            summaries.flush()

    def check_stop() -> None:
        if should_stop():
            raise _StopRequestedError

    summaries: Summaries = TensorBoard(arguments.job_dir, position.steps) if cluster.is_chief else NoSummaries()
    progress = Progress(
        position.steps, steps, experiment.epochs(position), arguments.log_every, arguments.heartbeat, summaries,
        experiment.model.metric_names, strategy.replicate(no_sums(experiment.model)), strategy.to_host,
        SHORT_STEPS_AHEAD if strategy.local_replicas == 1 else 1,
    )  # fmt: skip
    profiler = StepProfiler(summaries, arguments.profile, cluster.is_chief)
    histograms = Histograms(experiment, summaries) if arguments.histograms else None
    evaluated = batch = None
    try:
        while not experiment.is_stopped_early(position) and (
            position.steps < steps or experiment.is_epoch_read(position)
        ):
            progress.start_epoch()
            for examples, advance, batch in prefetch(_batches(experiment, position)):
                profiler.before(position.steps + 1)
                training, sums = train_step(training, progress.sums, *batch)
                position = position._replace(steps=position.steps + 1, examples=position.examples + advance)
                progress.add(position.steps, position.epochs + 1, examples, sums)
                profiler.after(position.steps, sums)
                check_stop()
                every = arguments.checkpoint_every
                if (every and position.steps % every == 0) or saver.is_due():
                    save(training, position)
                if position.steps == steps:
                    break
            progress.flush()
            after = position
            if experiment.is_epoch_read(position):
                after = position._replace(epochs=position.epochs + 1, examples=0)
            last = position.steps == steps
            evaluated, score, is_best = None, None, False
            if last or (arguments.evaluate_every and after.epochs % arguments.evaluate_every == 0):
                variables = (training.params, training.statistics)
                evaluated = experiment.evaluate(evaluation_step, variables, after, summaries, on_batch=check_stop)
                score = experiment.score(evaluated)
                is_best = math.isfinite(score) and (after.best is None or score > after.best)
                if is_best:
                    after = after._replace(best=score, best_epochs=after.epochs)
                if histograms is not None and batch is not None:
                    histograms.write(training, after.steps, batch)
            position = after
            if last or is_best or not arguments.checkpoint_every or experiment.is_stopped_early(position):
                save(training, position, score)
    except _StopRequestedError:  # during an evaluation, the same command begins with it
        profiler.close()
        progress.flush()
        save(training, position)
        saver.wait()
        progress.close()
        summaries.close()
        report("stopped", step=position.steps, steps=steps)
        return

    profiler.close()
    progress.close()
    saver.wait()
    host_state, exported = strategy.to_host(training), position
    if arguments.early_stopping:
        host_state, exported = experiment.best_state(saver, host_state, position)
    # Training was complete already, or an earlier state is the best.
    if evaluated is None or exported != position:
        variables = strategy.replicate((host_state.params, host_state.statistics))
        evaluated = experiment.evaluate(evaluation_step, variables, exported, summaries)
        if experiment.cluster.is_chief and exported != position:  # the value at the highest step is the trial's
            report_to_tuning_service(evaluated, position.steps, experiment.best_metric)
    experiment.save_model(saver, function, host_state, exported, evaluated)
    summaries.close()
    report("done", step=position.steps, steps=steps, parameters_sha256=state.parameters_sha256(host_state))


def _snapshot(strategy: Strategy, training: State) -> Callable[[], State]:
    """A copy of the state that training does not change; the function returns it on the host."""
    if jax.default_backend() == "cpu":
        # Views of the devices' buffers: JAX reuses none while it is referenced, although the step donates it.
        on_host: State = strategy.to_host(training)
        return lambda: on_host
    if strategy.whole:  # the chief is alone here, so only its first device computes
        local = jax.tree.map(lambda array: array.addressable_data(0), training)
        copied = copy_on_device(local)
    else:
        copied = strategy.snapshot(training)
    copies = [copied]
    return lambda: strategy.to_host(copies.pop())  # which frees the devices' memory


def _batches(experiment: Experiment, position: TrainingPosition) -> Iterator[tuple[int, int, tuple[Any, Any, Any]]]:
    """The remaining batches of the epoch: examples, advance, and this process's part, in transfer to the devices."""
    put = experiment.strategy.put
    batches = experiment.epoch_batches(position)
    for batch in read(batches, batches.in_memory):
        yield batch.examples, batch.advance, (put(batch.inputs), put(batch.labels), put(batch.weights))
