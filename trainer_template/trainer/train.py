"""Synchronous training: the same step in every replica, with the gradients averaged over all of them."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainer import distribute, state
from trainer.cluster import Cluster
from trainer.data import Share
from trainer.experiment import Experiment, prepare
from trainer.report import Progress, report
from trainer.saving import Saver
from trainer.sharding import read
from trainer.state import Position, State
from trainer.steps import make_evaluation_step, make_train_step
from trainer.strategy import Strategy, one_ahead
from trainer.summaries import NoSummaries, Summaries, TensorBoard

if TYPE_CHECKING:
    from trainer.task import Arguments

log = logging.getLogger("trainer")


def train(arguments: "Arguments", cluster: Cluster, strategy: Strategy) -> None:
    """Train from the newest checkpoint, or from the start, to the end or until SIGTERM. Every process runs this."""
    should_stop = distribute.stop_watch()
    share = Share(cluster.process_id, cluster.num_processes, strategy.local_replicas)
    experiment = prepare(arguments, cluster, strategy, share, arguments.sharding)
    saver = Saver(arguments.job_dir, cluster.process_id, arguments.keep)
    saver.prepare()
    restored, position, optimizer = experiment.start(saver)
    training = strategy.start(restored)
    train_step = make_train_step(experiment.model, optimizer, strategy)
    evaluation_step = make_evaluation_step(experiment.model, strategy)
    steps = position.steps + experiment.steps_left(position)
    report("begin", step=position.steps, steps=steps)
    log.info("Replicas in sync: %d, of them here: %d.", strategy.replicas_in_sync, strategy.local_replicas)
    global_batch = arguments.batch_size * share.replicas
    log.info("%d of %d steps done; the global batch is %d examples.", position.steps, steps, global_batch)

    def save(training: State, position: Position) -> State:
        on_host: State = strategy.on_host(training)
        saver.save_checkpoint(position.steps, state.checkpoint(experiment.model, on_host, position))
        if cluster.is_chief:
            report("checkpoint", step=position.steps)
        summaries.flush()
        return on_host

    summaries: Summaries = (
        TensorBoard(arguments.job_dir, position.steps) if cluster.is_chief else NoSummaries()
    )
    progress = Progress(
        position.steps, steps, arguments.epochs, arguments.log_every, arguments.heartbeat, summaries
    )
    accuracy = None
    on_host = restored
    while position.epochs < arguments.epochs:
        progress.start_epoch()
        for examples, advance, batch in one_ahead(_batches(experiment, position)):
            training, sums = train_step(training, *batch)
            position = Position(position.steps + 1, position.epochs, position.examples + advance)
            progress.add(position.steps, position.epochs + 1, examples, sums)
            if should_stop(position.steps):
                progress.flush()
                save(training, position)
                progress.close()
                summaries.close()
                saver.close()
                report("stopped", step=position.steps, steps=steps)
                return
            if arguments.checkpoint_every and position.steps % arguments.checkpoint_every == 0:
                save(training, position)
        progress.flush()
        position = Position(position.steps, position.epochs + 1)
        last = position.epochs == arguments.epochs
        if last or not arguments.checkpoint_every:
            on_host = save(training, position)
        accuracy = None
        if last or (arguments.evaluate_every and position.epochs % arguments.evaluate_every == 0):
            variables = (training.params, training.statistics)
            accuracy = experiment.evaluate(evaluation_step, variables, position, summaries)

    if accuracy is None:  # there was nothing left to train
        variables = (training.params, training.statistics)
        accuracy = experiment.evaluate(evaluation_step, variables, position, summaries)
    progress.close()
    experiment.save_model(saver, on_host, position, accuracy)
    summaries.close()
    saver.close()
    report("done", step=position.steps, steps=steps, parameters_sha256=state.parameters_sha256(on_host))


def _batches(experiment: Experiment, position: Position) -> Iterator[tuple[int, int, tuple[Any, Any, Any]]]:
    """What is left of the epoch: examples, advance, and this process's part on its way to the devices."""
    put = experiment.strategy.put
    for batch in read(experiment.epoch_batches(position), experiment.dataset.train.in_memory):
        yield batch.examples, batch.advance, (put(batch.inputs), put(batch.labels), put(batch.weights))
