"""Asynchronous training: parameter servers hold the variables, and each worker pulls and pushes at its own pace.

Nobody waits for anybody, so a slow worker slows nobody down, and one that dies is missed by nobody: started again, it
pulls and goes on. The price is staleness: a gradient is of variables that others have changed meanwhile. Every
worker, the chief included, reads all examples in an order of its own; a step is one update, by whichever worker,
and an epoch as many of them as it takes to read as many examples as there are. The chief saves, evaluates and
says when training is over.
"""

import itertools
import logging
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from trainer import distribute, state
from trainer.cluster import Cluster, ClusterError
from trainer.data import Share
from trainer.experiment import Experiment, prepare
from trainer.models import Sums
from trainer.parameter_server import Client, run_server
from trainer.report import Progress, report
from trainer.saving import Saver
from trainer.sharding import Batch, read
from trainer.state import Position, State
from trainer.steps import make_evaluation_step, make_gradient_step, make_optimizer
from trainer.strategy import Strategy
from trainer.summaries import NoSummaries, Summaries, TensorBoard

if TYPE_CHECKING:
    from trainer.task import Arguments

log = logging.getLogger("trainer")


def serve(arguments: "Arguments", cluster: Cluster, strategy: str) -> None:
    """Be a parameter server until training is over, or SIGTERM."""
    if strategy != "parameter-server":
        log.warning("--strategy %s has no use for this parameter server; it waits for SIGTERM.", strategy)
    run_server(
        cluster.parameter_servers[cluster.index],
        make_optimizer,
        cluster.index,
        len(cluster.parameter_servers),
        report=lambda **fields: report("updates", **fields),
        every=arguments.log_every,
    )


def train(arguments: "Arguments", cluster: Cluster, strategy: Strategy) -> None:
    """Be a worker from the newest checkpoint, or from the start, to the end or until SIGTERM."""
    if arguments.sharding not in ("auto", "off"):
        raise ClusterError(
            f"--sharding {arguments.sharding} is for replicas in sync. With parameter servers each worker reads all "
            "examples, in an order of its own: choose auto or off."
        )
    should_stop = distribute.stop_watch()
    share = Share(cluster.process_id, 1, strategy.local_replicas)
    experiment = prepare(arguments, cluster, strategy, share, "off")
    saver = Saver(arguments.job_dir, cluster.process_id, arguments.keep)
    saver.prepare()
    # The name tells a worker that was started again from the one that died.
    client = Client(cluster.parameter_servers, f"process-{cluster.process_id}/{secrets.token_hex(4)}")
    client.wait_until_ready(distribute.START_TIMEOUT)
    chief = _Chief(experiment, saver, client) if cluster.is_chief else None
    if chief:
        chief.bring_variables()
    settings = client.wait_until_initialized(distribute.START_TIMEOUT)
    course = Course(int(settings["steps"]) - int(settings["ahead"]), experiment)

    gradient_step = make_gradient_step(experiment.model, strategy)

    def gradient(values: Any, statistics: Any, batch: Batch) -> tuple[Any, Any, Sums]:
        parts = (strategy.put(part) for part in (batch.inputs, batch.labels, batch.weights))
        variables = strategy.start((experiment.model.params.split(values), statistics))
        computed, statistics, sums = gradient_step(variables, *parts)
        return strategy.on_host(computed), strategy.on_host(statistics), sums

    statistics = chief.statistics if chief else experiment.model.first_statistics()
    pulled = client.pull()
    if chief:
        chief.seen = pulled.version
    batches = _batches(experiment, course.position(pulled.version).epochs)
    if pulled.version < course.steps:
        # Compiles: others go on meanwhile, and a gradient that took so long would be of variables long gone.
        gradient(pulled.values, statistics, next(batches))
        pulled = client.pull()
    log.info(
        "Worker %d of %d: %d of %d steps done.",
        cluster.index,
        cluster.num_processes,
        pulled.version,
        course.steps,
    )
    report("begin", step=pulled.version, steps=course.steps)
    summaries: Summaries = TensorBoard(arguments.job_dir, pulled.version) if chief else NoSummaries()
    progress = Progress(
        pulled.version, course.steps, arguments.epochs, arguments.log_every, arguments.heartbeat, summaries
    )
    while pulled.version < course.steps and not should_stop(pulled.version):
        batch = next(batches)
        computed, statistics, sums = gradient(pulled.values, statistics, batch)
        pushed = client.push(computed, pulled)
        epoch = 1 + course.position(pushed.version - 1).epochs
        progress.add(pushed.version, min(epoch, arguments.epochs), batch.examples, sums, pushed.staleness)
        if chief and chief.look_after(course, pushed.version, statistics, summaries):
            progress.start_epoch()
        pulled = client.pull()
    progress.flush()
    progress.close()
    if chief:
        chief.end(course, statistics, summaries, stopped=pulled.version < course.steps)
    else:
        client.leave()
        ended = "done" if pulled.version >= course.steps else "stopped"
        report(ended, step=pulled.version, steps=course.steps)
    client.close()


class Course:
    """How far training is after so many steps of all workers together."""

    def __init__(self, steps: int, experiment: Experiment) -> None:
        """`steps` are those of the whole training."""
        self.steps = steps
        self._epochs = experiment.arguments.epochs
        self._epoch_steps = experiment.steps_of_an_epoch
        self._batch_size = experiment.batch_size * experiment.share.local_devices
        self._examples = len(experiment.dataset.train)

    def position(self, step: int) -> Position:
        """Counted from the end: a checkpoint of training in sync may have counted other steps before it."""
        left = max(0, self.steps - step)
        examples = -left % self._epoch_steps * self._batch_size
        return Position(step, self._epochs - -(-left // self._epoch_steps), min(examples, self._examples))


class _Chief:
    """Brings the variables; saves and evaluates them each time another epoch's worth of steps is done."""

    statistics: Any  # as of the checkpoint that training goes on from
    seen: int  # the step that it last looked at

    def __init__(self, experiment: Experiment, saver: Saver, client: Client) -> None:
        self._experiment, self._saver, self._client = experiment, saver, client
        self._evaluation_step = make_evaluation_step(experiment.model, experiment.strategy)
        self._optimizer_state: Any = None  # its structure

    def bring_variables(self) -> None:
        restored, position, _ = self._experiment.start(self._saver)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(restored.optimizer)]
        self._optimizer_state = jax.tree.structure(restored.optimizer)
        self.statistics = restored.statistics
        settings = self._experiment.optimizer_settings(position)
        values = self._experiment.model.params.join_on_host(restored.params)
        if not self._client.initialize(values, leaves, position.steps, settings):
            log.info("The parameter servers have variables already; training goes on with those.")

    def look_after(self, course: Course, step: int, statistics: Any, summaries: Summaries) -> bool:
        """After each step of the chief's own, some of others' having been done meanwhile. Whether it did anything."""
        arguments, seen, self.seen = self._experiment.arguments, self.seen, step
        if step >= course.steps:
            return False
        epochs = course.position(step).epochs
        another = epochs > course.position(seen).epochs
        every = arguments.checkpoint_every
        evaluation = another and arguments.evaluate_every and epochs % arguments.evaluate_every == 0
        if not (evaluation or (step // every > seen // every if every else another)):
            return False
        now, position = self._save(course, statistics)
        if evaluation:
            self._evaluate(now, position, summaries)
        return True

    def end(self, course: Course, statistics: Any, summaries: Summaries, stopped: bool) -> None:
        now, position = self._save(course, statistics)
        if stopped:
            report("stopped", step=position.steps, steps=course.steps)
        else:
            accuracy = self._evaluate(now, position, summaries)
            self._experiment.save_model(self._saver, now, position, accuracy)
            sha256 = state.parameters_sha256(now)
            report("done", step=position.steps, steps=course.steps, parameters_sha256=sha256)
        summaries.close()
        self._saver.close()
        self._client.finish()

    def _save(self, course: Course, statistics: Any) -> tuple[State, Position]:
        snapshot = self._client.snapshot()
        position = course.position(snapshot.version)
        optimizer = jax.tree.unflatten(self._optimizer_state, snapshot.leaves)
        now = State(self._experiment.model.params.split(snapshot.values), statistics, optimizer)
        self._saver.save_checkpoint(position.steps, state.checkpoint(self._experiment.model, now, position))
        report("checkpoint", step=position.steps)
        return now, position

    def _evaluate(self, now: State, position: Position, summaries: Summaries) -> float:
        variables = self._experiment.strategy.start((now.params, now.statistics))
        return self._experiment.evaluate(self._evaluation_step, variables, position, summaries)


def _batches(experiment: Experiment, epoch: int) -> Iterator[Batch]:
    """All examples in an order of this worker's own, again and again."""
    for number in itertools.count(epoch):
        yield from read(experiment.epoch_batches(Position(epochs=number)), experiment.dataset.train.in_memory)
