"""Asynchronous training: each worker pulls variables from parameter servers and pushes gradients at its own pace.

Workers do not wait for each other: a slow or dead worker does not delay the others, and a restarted one pulls the
variables and continues. The cost is staleness: a gradient is computed on variables that other workers have updated
since. Every worker, the chief included, reads all examples in its own order. A step is one update by any worker; an
epoch is the number of steps that read as many examples as the data has. The chief saves, evaluates and ends training.
"""

import itertools
import json
import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optax

from trainyard_trainer.arguments import Arguments
from trainyard_trainer.data.datasets import Shard
from trainyard_trainer.data.sharding import Batch, read
from trainyard_trainer.models.model import Model
from trainyard_trainer.models.task import TrainingTask
from trainyard_trainer.output.report import Progress, report
from trainyard_trainer.output.saving import Saver
from trainyard_trainer.output.summaries import NoSummaries, Summaries, TensorBoard
from trainyard_trainer.parameter_servers.client import ParameterServerClient, Pulled
from trainyard_trainer.parameter_servers.optimizer import DividedState, on_part
from trainyard_trainer.parameter_servers.server import run_server
from trainyard_trainer.processes import distribute
from trainyard_trainer.processes.cluster import ClusterError, ClusterSpec
from trainyard_trainer.training import state
from trainyard_trainer.training.experiment import Experiment, prepare
from trainyard_trainer.training.optimizers import make_optimizer
from trainyard_trainer.training.state import START, State, TrainingPosition
from trainyard_trainer.training.steps import Variables, make_evaluation_step, make_gradient_step, no_sums
from trainyard_trainer.training.strategy import Strategy

log = logging.getLogger("trainer")

IN_STEP = (
    "accumulate", "early_stopping", "histograms", "profile", "mesh", "global_batch", "mixup", "ema", "freeze", "lora"
)  # fmt: skip
"""Flags that are for synchronous training."""


def serve(arguments: Arguments, cluster: ClusterSpec, strategy: str, task: TrainingTask) -> None:
    """Run a parameter server until training ends, or SIGTERM."""
    if strategy != "parameter-server":
        log.warning("--strategy %s does not use this parameter server; it waits for SIGTERM.", strategy)
    run_server(
        cluster.parameter_servers[cluster.index],
        optimizer_of_settings(task, cluster.index, len(cluster.parameter_servers)),
        cluster.index,
        len(cluster.parameter_servers),
        report=lambda **fields: report("updates", **fields),
        every=arguments.log_every,
    )


def train(arguments: Arguments, cluster: ClusterSpec, strategy: Strategy, task: TrainingTask) -> None:
    """Run a worker, from the newest checkpoint if there is one, to the end or until SIGTERM."""
    if arguments.sharding not in ("auto", "off"):
        raise ClusterError(
            f"--sharding {arguments.sharding} is for synchronous training. With parameter servers each worker reads "
            "all examples in its own order: choose auto or off."
        )
    given = [f"--{name.replace('_', '-')}" for name in IN_STEP if getattr(arguments, name) != getattr(Arguments, name)]
    if given:
        raise ClusterError(f"{' and '.join(given)} is for synchronous training: leave it out.")
    should_stop = distribute.make_stop_check()
    shard = Shard(cluster.process_id, 1, strategy.local_replicas)
    experiment = prepare(arguments, task, cluster, strategy, shard, "off")
    with Saver(arguments.job_dir, cluster.process_id, arguments.keep, arguments.save_seconds) as saver:
        _train(experiment, saver, should_stop)


def _train(experiment: Experiment, saver: Saver, should_stop: Callable[[], bool]) -> None:
    arguments, cluster, strategy = experiment.arguments, experiment.cluster, experiment.strategy
    # The random part distinguishes a restarted worker from the one that died.
    name = f"process-{cluster.process_id}/{secrets.token_hex(4)}"
    params, servers = experiment.model.params, cluster.parameter_servers
    client = ParameterServerClient(servers, name, [params.elements(leaves) for leaves in params.cut(len(servers))])
    client.wait_until_ready(distribute.START_TIMEOUT)
    chief = _Chief(experiment, saver, client) if cluster.is_chief else None
    if chief:
        chief.initialize_variables()
    settings = client.wait_until_initialized(distribute.START_TIMEOUT)
    counter = EpochCounter(int(settings["steps"]) - int(settings["ahead"]), experiment)

    gradient_step = make_gradient_step(experiment.model, strategy, arguments.seed)

    def gradient(pulled: Pulled, statistics: Any, batch: Batch) -> tuple[Any, Any, Any]:
        parts = (strategy.put(part) for part in (batch.inputs, batch.labels, batch.weights))
        params = experiment.model.params.unravel(pulled.values)
        variables = strategy.replicate(Variables(params, statistics, np.int32(pulled.version)))
        computed, statistics, sums = gradient_step(variables, *parts)
        return strategy.to_host(computed), strategy.to_host(statistics), strategy.to_host(sums)

    statistics = chief.statistics if chief else experiment.model.initial_statistics()
    pulled = client.pull()
    if chief:
        chief.last_step = pulled.version
    batches = _batches(experiment, counter.position(pulled.version).epochs)
    if pulled.version < counter.steps:
        # Compile first, then pull again: other workers update the variables in the meantime.
        first = next(batches)
        gradient(pulled, statistics, first)
        batches = itertools.chain([first], batches)
        pulled = client.pull()
    log.info("Worker %d of %d: step %d.", cluster.index, cluster.num_processes, pulled.version)
    report("begin", step=pulled.version, steps=counter.steps)
    summaries: Summaries = TensorBoard(arguments.job_dir, pulled.version) if chief else NoSummaries()
    progress = Progress(
        pulled.version, counter.steps, experiment.epochs(), arguments.log_every, arguments.heartbeat, summaries,
        experiment.model.metric_names, no_sums(experiment.model),
    )  # fmt: skip
    while pulled.version < counter.steps and not should_stop():
        batch = next(batches)
        computed, statistics, sums = gradient(pulled, statistics, batch)
        pushed = client.push(computed, pulled)
        epoch = 1 + counter.position(pushed.version - 1).epochs
        sums = progress.sums + sums
        progress.add(pushed.version, min(epoch, experiment.epochs()), batch.examples, sums, pushed.staleness)
        if chief and chief.after_step(counter, pushed.version, statistics, summaries):
            progress.start_epoch()
        pulled = client.pull()
    progress.flush()
    progress.close()
    if chief:
        chief.end(counter, statistics, summaries, stopped=pulled.version < counter.steps)
    else:
        client.leave()
        ended = "done" if pulled.version >= counter.steps else "stopped"
        report(ended, step=pulled.version, steps=counter.steps)
    client.close()


def optimizer_of_settings(task: TrainingTask, index: int, servers: int) -> Callable[..., optax.GradientTransformation]:
    """The settings of `_Chief` -> optimizer, as a server makes it for its part of the parameters."""

    def make(
        input_shape: str, input_dtype: str, layout: str, classes: int, **schedule: Any
    ) -> optax.GradientTransformation:
        shape = tuple(int(size) for size in input_shape.split(",") if size)
        arrays = tuple((name, tuple(axes), kind) for name, axes, kind in json.loads(layout))
        params = Model(task, shape, input_dtype, classes, (arrays, ())).params
        return on_part(make_optimizer(task.optimizer, **schedule), params, params.cut(servers)[index])

    return make


class EpochCounter:
    """Converts the steps of all workers to epochs."""

    def __init__(self, steps: int, experiment: Experiment) -> None:
        """`steps`: number of steps of the whole training."""
        self.steps = steps
        self._epochs = experiment.epochs()
        self._epoch_steps = experiment.steps_per_epoch
        self._batch_size = experiment.batch_size * experiment.shard.local_devices
        self._examples = len(experiment.dataset.train)

    def position(self, step: int) -> TrainingPosition:
        """Counted from the end, because a checkpoint of synchronous training has other steps per epoch."""
        left = max(0, self.steps - step)
        examples = -left % self._epoch_steps * self._batch_size
        return TrainingPosition(step, self._epochs - -(-left // self._epoch_steps), min(examples, self._examples))


class _Chief:
    """The chief's duties: initializes the variables, saves and evaluates them at the end of each epoch."""

    statistics: Any  # of the checkpoint that training resumes from
    last_step: int  # as of the last check

    def __init__(self, experiment: Experiment, saver: Saver, client: ParameterServerClient) -> None:
        self._experiment, self._saver, self._client = experiment, saver, client
        self._evaluation_step = make_evaluation_step(experiment.model, experiment.strategy)
        servers = len(experiment.cluster.parameter_servers)
        self._state = DividedState(experiment.optimizer(START), experiment.model.params, servers)
        self._function = experiment.export_function()

    def initialize_variables(self) -> None:
        on_devices, position, _ = self._experiment.restore_or_initialize(self._saver)
        restored = self._experiment.strategy.to_host(on_devices)
        leaves = self._state.divide(restored.optimizer)
        self.statistics = restored.statistics
        model = self._experiment.model
        settings: dict[str, str | int | float] = {
            **self._experiment.optimizer_settings(position),
            "input_shape": ",".join(map(str, model.input_shape)),
            "input_dtype": str(model.input_dtype),
            "layout": json.dumps(model.layouts[0]),
            "classes": model.classes,
        }
        values = model.params.ravel_on_host(restored.params)
        if not self._client.initialize(values, leaves, position.steps, settings):
            log.info("The parameter servers already have variables; training continues with those.")

    def after_step(self, counter: EpochCounter, step: int, statistics: Any, summaries: Summaries) -> bool:
        """Save or evaluate if it is due, after each step of the chief; returns whether it did."""
        arguments, before, self.last_step = self._experiment.arguments, self.last_step, step
        if step >= counter.steps:
            return False
        epochs = counter.position(step).epochs
        new_epoch = epochs > counter.position(before).epochs
        every = arguments.checkpoint_every
        evaluation = new_epoch and arguments.evaluate_every and epochs % arguments.evaluate_every == 0
        due = self._saver.is_due() or (step // every > before // every if every else new_epoch)
        if not (evaluation or due):
            return False
        current, position = self._snapshot(counter, statistics)
        evaluated = self._evaluate(current, position, summaries) if evaluation else None
        self._save(current, position, self._experiment.score(evaluated) if evaluated else None)
        return True

    def end(self, counter: EpochCounter, statistics: Any, summaries: Summaries, stopped: bool) -> None:
        current, position = self._snapshot(counter, statistics)
        if stopped:
            self._save(current, position, None)
            self._saver.wait()
            report("stopped", step=position.steps, steps=counter.steps)
        else:
            evaluated = self._evaluate(current, position, summaries)
            self._save(current, position, self._experiment.score(evaluated))
            self._saver.wait()
            params, statistics = current.params, current.statistics
            self._experiment.save_model(self._saver, self._function, params, statistics, position, evaluated)
            sha256 = state.parameters_sha256(params)
            report("done", step=position.steps, steps=counter.steps, parameters_sha256=sha256)
        summaries.close()
        self._client.finish()

    def _snapshot(self, counter: EpochCounter, statistics: Any) -> tuple[State, TrainingPosition]:
        snapshot = self._client.snapshot()
        position = counter.position(snapshot.version)
        optimizer = self._state.join(snapshot.leaves)
        params = self._experiment.model.params.unravel(snapshot.values)
        return State(params, statistics, optimizer, np.int32(snapshot.version)), position

    def _save(self, current: State, position: TrainingPosition, score: float | None) -> None:
        self._saver.save(
            position._asdict(),
            lambda: state.to_arrays(current),
            lambda: report("checkpoint", step=position.steps),
            score,
        )

    def _evaluate(self, current: State, position: TrainingPosition, summaries: Summaries) -> dict[str, float]:
        variables = self._experiment.strategy.replicate((current.params, current.statistics))
        return self._experiment.evaluate(self._evaluation_step, variables, position, summaries)


def _batches(experiment: Experiment, epoch: int) -> Iterator[Batch]:
    """Batches of all examples in this worker's own order, epoch after epoch without end."""
    for number in itertools.count(epoch):
        batches = experiment.epoch_batches(TrainingPosition(epochs=number))
        yield from read(batches, batches.in_memory)
