"""Setup shared by all roles: data, model, optimizer, restoring, evaluation and export."""

import dataclasses
import functools
import hashlib
import json
import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from trainyard_trainer import distribute, state, steps
from trainyard_trainer.arguments import Arguments
from trainyard_trainer.cluster import ClusterSpec
from trainyard_trainer.data import datasets
from trainyard_trainer.data.augmentation import Augmentation
from trainyard_trainer.data.datasets import Shard, Sharding
from trainyard_trainer.data.sharding import Batches, epoch_order, steps_for
from trainyard_trainer.errors import CheckpointError, TrainerUsageError
from trainyard_trainer.models import model as models
from trainyard_trainer.models.model import Model
from trainyard_trainer.models.task import TaskError, TrainingTask, load_task
from trainyard_trainer.output.export import ModelFunction, export_function, model_files, summary
from trainyard_trainer.output.report import PeriodicReport, report
from trainyard_trainer.output.saving import Saver
from trainyard_trainer.output.summaries import Summaries, report_to_tuning_service
from trainyard_trainer.state import START, State, TrainingPosition
from trainyard_trainer.strategy import Strategy

log = logging.getLogger("trainer")

DEFAULT_EPOCHS = 5


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The data, model and flags of one process. `shard` is its part of the data."""

    arguments: Arguments
    cluster: ClusterSpec
    strategy: Strategy
    shard: Shard
    dataset: datasets.Dataset
    model: Model

    def epochs(self, position: TrainingPosition = START) -> int:
        """--epochs, or as many as --steps needs from this position on, with the current number of replicas."""
        limit = self.arguments.steps
        if self.arguments.epochs is not None or limit is None:
            return self.arguments.epochs or DEFAULT_EPOCHS
        later = limit - position.steps - self._steps_of_epoch(position)
        return position.epochs + 1 + max(0, -(-later // self.steps_per_epoch))

    @property
    def off(self) -> bool:
        return self.dataset.sharding == "off"

    @property
    def batch_size(self) -> int:
        """Per replica, and per piece of --accumulate."""
        return self.arguments.batch_size

    def steps_left(self, position: TrainingPosition) -> int:
        """Number of steps from this position to the end of training, on the current number of replicas."""
        epochs = self.epochs(position)
        if position.epochs >= epochs or self.is_stopped_early(position):
            return 0
        of_all = self._steps_of_epoch(position) + self.steps_per_epoch * (epochs - position.epochs - 1)
        limit = self.arguments.steps
        return of_all if limit is None else min(of_all, max(0, limit - position.steps))

    def is_epoch_read(self, position: TrainingPosition) -> bool:
        """Whether only the end of the epoch, such as its evaluation, is left of it."""
        return position.examples >= len(self.dataset.train)

    def is_stopped_early(self, position: TrainingPosition) -> bool:
        """Whether --early-stopping ends the training: so many evaluations were no better than the best."""
        worse = (position.epochs - position.best_epochs) // max(1, self.arguments.evaluate_every)
        return bool(
            self.arguments.early_stopping and position.best is not None and worse >= self.arguments.early_stopping
        )

    @property
    def steps_per_epoch(self) -> int:
        return steps_for(len(self.dataset.train), self.batch_size, self.shard, self.off)

    def _steps_of_epoch(self, position: TrainingPosition) -> int:
        """Number of steps from this position to the end of its epoch."""
        left = len(self.dataset.train) - position.examples
        return steps_for(left, self.batch_size, self.shard, self.off)

    def epoch_batches(self, position: TrainingPosition) -> Batches:
        """The remaining batches of the epoch at this position."""
        order = epoch_order(self.dataset, self.shard, self.arguments.seed, position.epochs)
        kinds, seed = self.arguments.augment, self.arguments.seed
        augment = Augmentation(kinds, seed, position.epochs) if kinds else None
        return Batches(
            self.dataset.train, order, self.batch_size, self.shard, self.model.classes, self.off, augment,
            position.examples,
        )  # fmt: skip

    def optimizer_settings(self, position: TrainingPosition) -> dict[str, int | float]:
        """The arguments of `steps.make_optimizer`, with the learning rate schedule from this position on."""
        task = self.model.task
        rate = self.arguments.learning_rate or task.learning_rate
        batch_size = self.batch_size * self.shard.replicas
        peak = steps.scale_learning_rate(
            rate, self.arguments.learning_rate_scaling, batch_size, task.reference_batch_size
        )
        total = self.steps_left(START)
        return {
            "peak": peak,
            "start": min(rate, peak),
            "steps": total,
            "warmup": self.arguments.warmup,
            "ahead": total - self.steps_left(position) - position.steps,
        }

    def optimizer(self, position: TrainingPosition) -> optax.GradientTransformation:
        return steps.make_optimizer(self.model.task.optimizer, **self.optimizer_settings(position))  # type: ignore[arg-type]

    def fingerprint(self) -> dict[str, Any]:
        """The identity of the training in its job directory: data, seed and model. On the chief."""
        train = self.dataset.train
        inputs, labels = train.rows(np.arange(1))
        # The pixels of a JPEG depend on the version of the decoder.
        first = hashlib.sha256((inputs.tobytes() if train.in_memory else b"") + labels.tobytes())
        return {
            "seed": self.arguments.seed,
            "model": f"{self.model.name} ({state.layers_sha256(self.model)[:8]})",
            "training_examples": len(train),
            "held_out_examples": len(self.dataset.held_out),
            "input": f"{self.dataset.input_dtype} {list(self.dataset.input_shape)}",
            "labels": len(self.dataset.label_names),
            "first_example": first.hexdigest()[:8],
        }

    def restore_or_initialize(self, saver: Saver) -> tuple[State, TrainingPosition, optax.GradientTransformation]:
        """The state of the chief's newest checkpoint, or the initial state.

        The chief broadcasts it, as other processes may not see the same disk.

        Raises:
            CheckpointError: the checkpoints are of another training.
            JobDirLockedError: another trainer writes to the job directory.
        """
        shapes = state.state_shapes(self.model, self.optimizer(START))
        own: State | None = None
        header: dict[str, Any] = {}
        if self.cluster.is_chief:
            try:
                saver.prepare(self.fingerprint())
                entry_and_arrays = saver.newest()
                if entry_and_arrays:
                    entry, arrays = entry_and_arrays
                    own, header = state.from_arrays(shapes, arrays), entry.position
                else:
                    own = state.initial_state(self.model, self.optimizer(START), self.arguments.seed)
                    header = START._asdict()
            except TrainerUsageError as error:  # all processes end with it
                header = {"error": str(error)}
        header = json.loads(distribute.broadcast(json.dumps(header).encode()))
        if "error" in header:
            raise CheckpointError(header["error"])
        position = TrainingPosition(**header)
        return _broadcast(own, shapes), position, self.optimizer(position)

    def evaluate(
        self,
        step: steps.EvaluationStep,
        variables: tuple[Any, Any],
        position: TrainingPosition,
        summaries: Summaries,
        run: str = "held_out",
        on_batch: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Loss and metrics on the held-out examples; all processes call this together, the chief reports them."""
        # A small held-out set in large batches would be mostly padding.
        largest = max(1, -(-len(self.dataset.held_out) // self.shard.replicas))
        batch_size = min(largest, max(self.batch_size, steps.EVALUATION_BATCH))
        heartbeat = PeriodicReport(self.arguments.heartbeat, "evaluating", step=position.steps)

        def after_batch() -> None:
            heartbeat()
            on_batch()

        evaluated = steps.evaluate(
            self.model, step, variables, self.dataset.held_out, batch_size, self.shard, self.strategy, after_batch
        )  # fmt: skip
        if self.shard.process_id == 0:
            measured = {f"held_out_{name}": round(value, 6) for name, value in evaluated.items()}
            report("evaluation", step=position.steps, epoch=position.epochs, **measured)
            summaries.scalars(run, position.steps, **measured)
            summaries.flush()
        if self.cluster.is_chief:
            report_to_tuning_service(evaluated, position.steps, self.best_metric)
        return evaluated

    def score(self, evaluated: dict[str, float]) -> float:
        """The metric of --best; of two states, the better has the higher score."""
        name, direction = self.best_metric
        return evaluated[name] if direction == "max" else -evaluated[name]

    @property
    def best_metric(self) -> tuple[str, str]:
        """Name and direction (min, max) of --best; by default the accuracy, or the loss of a task that has none."""
        if self.arguments.best is not None:
            return self.arguments.best
        return ("accuracy", "max") if "accuracy" in self.model.task.metrics else ("loss", "min")

    def best_state(self, saver: Saver, last: State, position: TrainingPosition) -> tuple[State, TrainingPosition]:
        """The state of the best evaluation, in every process; the last one if its checkpoint is missing."""
        best = saver.best() if self.cluster.is_chief else None
        header = json.loads(distribute.broadcast(json.dumps(best and best[0].position).encode()))
        if header is None:
            return last, position
        log.info("The state of step %d is exported: its evaluation was the best.", header["steps"])
        shapes = state.state_shapes(self.model, self.optimizer(START))
        own = state.from_arrays(shapes, best[1]) if best else None
        return _broadcast(own, shapes), TrainingPosition(**header)

    def export_function(self) -> ModelFunction | None:
        """The network that the chief will export. It is known before the first step: what cannot be exported is too."""
        if not self.cluster.is_chief:
            return None
        return export_function(self.model, self.batch_size, self.dataset.label_names)

    def save_model(
        self,
        saver: Saver,
        function: ModelFunction | None,
        trained: State,
        position: TrainingPosition,
        evaluated: dict[str, float],
    ) -> None:
        """Write and report the model, on the chief. What is trained fails for its storage alone."""
        if not self.cluster.is_chief:
            return
        if function is None:
            log.warning("There is no model, as it cannot be exported; the last checkpoint has what was trained.")
            return
        facts: dict[str, Any] = {"steps": position.steps}
        facts |= {f"held_out_{name}": value for name, value in evaluated.items() if name != "loss"}
        facts["parameters_sha256"] = state.parameters_sha256(trained)
        try:
            files = model_files(function, self.model, trained, facts)
        except Exception as error:  # noqa: BLE001 - of any kind, such as too little memory
            log.warning(
                "There is no model, as it could not be made; the last checkpoint has what was trained. (%s)",
                summary(error),
            )
            return
        report("saved", model=saver.save_model(files))


def _broadcast(own: State | None, shapes: State) -> State:
    """The chief's state (`own`) in every process."""
    if own is not None and jax.process_count() == 1:
        return own
    leaves, structure = jax.tree.flatten(shapes)
    sizes = [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves]
    buffer = np.empty(sum(sizes), np.uint8)
    pieces = np.split(buffer, np.cumsum(sizes)[:-1])
    arrays = [piece.view(leaf.dtype).reshape(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)]
    if own is not None:
        for array, leaf in zip(arrays, jax.tree.leaves(own), strict=True):
            array[...] = leaf
    distribute.broadcast_into(buffer)
    state_: State = jax.tree.unflatten(structure, arrays)
    return state_


def prepare(
    arguments: Arguments, cluster: ClusterSpec, strategy: Strategy, shard: Shard, sharding: Sharding
) -> Experiment:
    """Load the data and build the model; all processes call this together.

    Raises:
        DataError, FileError: the data cannot be used.
        ModelError: the model does not accept it.
    """
    task = task_of(arguments)
    if task.data is None:
        dataset = datasets.load(
            arguments.data, arguments.held_out_data, sharding, arguments.input_shape or task.input_shape,
            arguments.classes or task.classes, shard, distribute.gather, arguments.cache, arguments.stream,
        )  # fmt: skip
    else:
        dataset = datasets.in_memory(f"the data of {task.name}", task.data(), sharding)
    names = ("loss", *task.metrics)
    if arguments.best is not None and arguments.best[0] not in names:
        raise TaskError(f"--best {':'.join(arguments.best)}: the metrics of {task.name} are {', '.join(names)}.")
    if arguments.augment and len(dataset.input_shape) != 3:
        raise datasets.DataError(
            f"--augment is for images [H, W, C]; the data has {dataset.input_dtype} {list(dataset.input_shape)}."
        )
    model = Model(task, dataset.input_shape, dataset.input_dtype, len(dataset.label_names))
    return Experiment(arguments, cluster, strategy, shard, dataset, model)


def task_of(arguments: Arguments) -> TrainingTask:
    """The model of --task or --model, with the optimizer of the flags.

    Raises:
        TaskError: the module of --task cannot be used, or not with these flags.
    """
    if arguments.task:
        if arguments.optimizer or arguments.weight_decay or arguments.precision != "float32":
            raise TaskError(
                "--optimizer, --weight-decay and --precision are for --model. A task has an optimizer and a network "
                "of its own."
            )
        task = load_task(arguments.task)
        if task.data is not None and (arguments.data != "digits" or arguments.held_out_data):
            raise TaskError(
                "--data and --held-out-data are for --model and for tasks without data; "
                f"{task.name} has data of its own."
            )
        return task
    name = arguments.optimizer or models.MODELS[arguments.model].optimizer
    make = functools.partial(steps.OPTIMIZERS[name], decay=arguments.weight_decay)
    return models.built_in(arguments.model, arguments.precision, optimizer=make)
