"""Synchronous training: every replica runs the same steps, with gradients averaged over all replicas."""

import logging
import math
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import jax

from trainyard_trainer.arguments import Arguments
from trainyard_trainer.data.datasets import Shard
from trainyard_trainer.data.sharding import read
from trainyard_trainer.models.task import TrainingTask
from trainyard_trainer.output.report import DivergenceError, Progress, report
from trainyard_trainer.output.saving import NotFiniteError, Saver
from trainyard_trainer.output.summaries import NoSummaries, Summaries, TensorBoard, report_to_tuning_service
from trainyard_trainer.processes import distribute
from trainyard_trainer.processes.cluster import ClusterError, ClusterSpec
from trainyard_trainer.training import state
from trainyard_trainer.training.experiment import Experiment, prepare
from trainyard_trainer.training.state import State, TrainingPosition
from trainyard_trainer.training.steps import evaluated_variables, make_evaluation_step, make_train_step, no_sums
from trainyard_trainer.training.strategy import Strategy, prefetch

log = logging.getLogger("trainer")

Fetched = TypeVar("Fetched")

SHORT_STEPS_AHEAD = 8  # with several CPU devices in a process, XLA's thread pool can deadlock


class _StopRequestedError(Exception):
    """SIGTERM."""


def train(arguments: Arguments, cluster: ClusterSpec, strategy: Strategy, task: TrainingTask) -> None:
    """Train to the end or until SIGTERM, resuming from the newest checkpoint. All processes call this together."""
    should_stop = distribute.make_stop_check()
    if arguments.save_seconds and not strategy.whole:
        raise ClusterError(
            "--save-seconds needs the whole state in the chief. Where it is divided over workers, all processes save "
            "together: choose --checkpoint-every."
        )
    if arguments.early_stopping and not arguments.evaluate_every:
        raise ClusterError("--early-stopping needs evaluations, and --evaluate-every 0 leaves them to an evaluator.")
    # A piece of --accumulate is to the data what a further replica would be.
    pieces = strategy.local_replicas * strategy.accumulate
    shard = Shard(cluster.process_id, cluster.num_processes, pieces)
    experiment = prepare(arguments, task, cluster, strategy, shard, arguments.sharding)
    with Saver(arguments.job_dir, cluster.process_id, arguments.keep, arguments.save_seconds) as saver:
        _train(experiment, saver, should_stop)


def _train(experiment: Experiment, saver: Saver, should_stop: Callable[[], bool]) -> None:
    arguments, cluster, strategy = experiment.arguments, experiment.cluster, experiment.strategy
    training, position, optimizer = experiment.restore_or_initialize(saver)
    token = distribute.broadcast(secrets.token_hex(4).encode()).decode()  # of what all processes save together
    function = experiment.export_function()
    train_step = make_train_step(
        experiment.model, optimizer, strategy, arguments.seed, arguments.mixup, experiment.trains
    )
    evaluation_step = make_evaluation_step(experiment.model, strategy)
    steps = position.steps + experiment.steps_left(position)
    report("begin", step=position.steps, steps=steps)
    log.info("Replicas in sync: %d (%d local).", strategy.replicas_in_sync, strategy.local_replicas)
    global_batch = arguments.batch_size * experiment.shard.replicas
    log.info("%d of %d steps done; the global batch is %d examples.", position.steps, steps, global_batch)

    def save(training: State, position: TrainingPosition, score: float | None = None) -> None:
        on_saved = partial(report, "checkpoint", step=position.steps)
        if not strategy.whole:
            fetch_pieces = snapshot(strategy, training, state.to_pieces)
            saved = on_saved if cluster.is_chief else lambda: None
            saver.save_together(position._asdict(), fetch_pieces, saved, score, cluster.num_processes, token)
        elif cluster.is_chief:
            saver.make_room(position.steps, score)
            fetch = snapshot(strategy, training, strategy.to_host)
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
    evaluated = None
    try:
        while not experiment.is_stopped_early(position) and (
            position.steps < steps or experiment.is_epoch_read(position)
        ):
            progress.start_epoch()
            for examples, advance, batch in prefetch(_batches(experiment, position)):
                training, sums = train_step(training, progress.sums, *batch)
                position = position._replace(steps=position.steps + 1, examples=position.examples + advance)
                progress.add(position.steps, position.epochs + 1, examples, sums)
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
                variables = evaluated_variables(training)
                evaluated = experiment.evaluate(evaluation_step, variables, after, summaries, on_batch=check_stop)
                score = experiment.score(evaluated)
                is_best = math.isfinite(score) and (after.best is None or score > after.best)
                if is_best:
                    after = after._replace(best=score, best_epochs=after.epochs)
            position = after
            if last or is_best or not arguments.checkpoint_every or experiment.is_stopped_early(position):
                save(training, position, score)
    except (DivergenceError, NotFiniteError) as error:
        raise experiment.cause(error, position) from error
    except _StopRequestedError:  # during an evaluation, the same command begins with it
        progress.flush()
        save(training, position)
        saver.wait()
        progress.close()
        summaries.close()
        report("stopped", step=position.steps, steps=steps)
        return

    progress.close()
    saver.wait()
    variables, exported = evaluated_variables(training), position
    if arguments.early_stopping:
        variables, exported = experiment.best_variables(saver, variables, position)
    # Training was complete already, or an earlier state is the best.
    if evaluated is None or exported != position:
        evaluated = experiment.evaluate(evaluation_step, variables, exported, summaries)
        if experiment.cluster.is_chief and exported != position:  # the value at the highest step is the trial's
            report_to_tuning_service(evaluated, position.steps, experiment.best_metric)
    params, statistics = strategy.to_host(variables)
    experiment.save_model(saver, function, params, statistics, exported, evaluated)
    summaries.close()
    report("done", step=position.steps, steps=steps, parameters_sha256=state.parameters_sha256(params))


def snapshot(strategy: Strategy, training: State, fetch: Callable[[State], Fetched]) -> Callable[[], Fetched]:
    """Fetch from a copy of the state that training does not change."""
    if jax.default_backend() == "cpu":
        # Views of the devices' buffers: JAX reuses none while it is referenced, although the step donates it.
        on_host = fetch(training)
        return lambda: on_host
    copies = [strategy.snapshot(training)]
    return lambda: fetch(copies.pop())  # which frees the devices' memory


def _batches(experiment: Experiment, position: TrainingPosition) -> Iterator[tuple[int, int, tuple[Any, Any, Any]]]:
    """The remaining batches of the epoch: examples, advance, and this process's part, in transfer to the devices."""
    put = experiment.strategy.put
    batches = experiment.epoch_batches(position)
    for batch in read(batches, batches.in_memory, experiment.arguments.decode_processes):
        yield batch.examples, batch.advance, (put(batch.inputs), put(batch.labels), put(batch.weights))
