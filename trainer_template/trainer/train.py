"""Synchronous training: every replica runs the same steps, with gradients averaged over all replicas."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainer import distribute, state
from trainer.cluster import ClusterSpec
from trainer.data.datasets import Shard
from trainer.data.sharding import read
from trainer.experiment import Experiment, prepare
from trainer.output.report import Progress, report
from trainer.output.saving import Saver
from trainer.output.summaries import NoSummaries, Summaries, TensorBoard
from trainer.state import State, TrainingPosition
from trainer.steps import make_evaluation_step, make_train_step
from trainer.strategy import Strategy, prefetch

if TYPE_CHECKING:
    from trainer.task import Arguments

log = logging.getLogger("trainer")


def train(arguments: "Arguments", cluster: ClusterSpec, strategy: Strategy) -> None:
    """Train to the end or until SIGTERM, resuming from the newest checkpoint. All processes call this together."""
    should_stop = distribute.make_stop_check()
    shard = Shard(cluster.process_id, cluster.num_processes, strategy.local_replicas)
    experiment = prepare(arguments, cluster, strategy, shard, arguments.sharding)
    saver = Saver(arguments.job_dir, cluster.process_id, arguments.keep)
    saver.prepare()
    restored, position, optimizer = experiment.restore_or_initialize(saver)
    training = strategy.replicate(restored)
    train_step = make_train_step(experiment.model, optimizer, strategy)
    evaluation_step = make_evaluation_step(experiment.model, strategy)
    steps = position.steps + experiment.steps_left(position)
    report("begin", step=position.steps, steps=steps)
    log.info("Replicas in sync: %d (%d local).", strategy.replicas_in_sync, strategy.local_replicas)
    global_batch = arguments.batch_size * shard.replicas
    log.info("%d of %d steps done; the global batch is %d examples.", position.steps, steps, global_batch)

    def save(training: State, position: TrainingPosition) -> State:
        host_state: State = strategy.to_host(training)
        saver.save_checkpoint(position.steps, state.checkpoint(experiment.model, host_state, position))
        if cluster.is_chief:
            report("checkpoint", step=position.steps)
        summaries.flush()
        return host_state

    chief = cluster.is_chief
    summaries: Summaries = TensorBoard(arguments.job_dir, position.steps) if chief else NoSummaries()
    progress = Progress(
        position.steps, steps, arguments.epochs, arguments.log_every, arguments.heartbeat, summaries
    )
    accuracy = None
    host_state = restored
    while position.epochs < arguments.epochs:
        progress.start_epoch()
        for examples, advance, batch in prefetch(_batches(experiment, position)):
            training, sums = train_step(training, *batch)
            position = TrainingPosition(position.steps + 1, position.epochs, position.examples + advance)
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
        position = TrainingPosition(position.steps, position.epochs + 1)
        last = position.epochs == arguments.epochs
        if last or not arguments.checkpoint_every:
            host_state = save(training, position)
        accuracy = None
        if last or (arguments.evaluate_every and position.epochs % arguments.evaluate_every == 0):
            variables = (training.params, training.statistics)
            accuracy = experiment.evaluate(evaluation_step, variables, position, summaries)

    if accuracy is None:  # the training was already complete
        variables = (training.params, training.statistics)
        accuracy = experiment.evaluate(evaluation_step, variables, position, summaries)
    progress.close()
    experiment.save_model(saver, host_state, position, accuracy)
    summaries.close()
    saver.close()
    report("done", step=position.steps, steps=steps, parameters_sha256=state.parameters_sha256(host_state))


def _batches(
    experiment: Experiment, position: TrainingPosition
) -> Iterator[tuple[int, int, tuple[Any, Any, Any]]]:
    """The remaining batches of the epoch: examples, advance, and this process's part, in transfer to the devices."""
    put = experiment.strategy.put
    for batch in read(experiment.epoch_batches(position), experiment.dataset.train.in_memory):
        yield batch.examples, batch.advance, (put(batch.inputs), put(batch.labels), put(batch.weights))
