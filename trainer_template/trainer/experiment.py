"""Setup shared by all roles: data, model, optimizer, restoring, evaluation and export."""

import dataclasses
from typing import TYPE_CHECKING, Any

import optax

from trainer import distribute, state, steps
from trainer.cluster import ClusterSpec
from trainer.data import datasets
from trainer.data.datasets import Shard, Sharding
from trainer.data.sharding import Batches, epoch_order, steps_for
from trainer.models import model as models
from trainer.output.export import export
from trainer.output.report import PeriodicReport, report
from trainer.output.saving import Saver
from trainer.output.summaries import Summaries, report_to_tuning_service
from trainer.state import START, State, TrainingPosition
from trainer.strategy import Strategy

if TYPE_CHECKING:
    from trainer.task import Arguments


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The data, model and flags of one process. `shard` is its part of the data."""

    arguments: "Arguments"
    cluster: ClusterSpec
    strategy: Strategy
    shard: Shard
    dataset: datasets.Dataset
    model: models.Model

    @property
    def off(self) -> bool:
        return self.dataset.sharding == "off"

    @property
    def batch_size(self) -> int:
        """Per replica."""
        return self.arguments.batch_size

    def steps_left(self, position: TrainingPosition) -> int:
        """Number of steps from this position to the end of training, on the current number of replicas."""
        if position.epochs >= self.arguments.epochs:
            return 0
        left = len(self.dataset.train) - position.examples
        of_this_epoch = steps_for(left, self.batch_size, self.shard, self.off)
        return of_this_epoch + self.steps_per_epoch * (self.arguments.epochs - position.epochs - 1)

    @property
    def steps_per_epoch(self) -> int:
        return steps_for(len(self.dataset.train), self.batch_size, self.shard, self.off)

    def epoch_batches(self, position: TrainingPosition) -> Batches:
        """The remaining batches of the epoch at this position."""
        order = epoch_order(self.dataset, self.shard, self.arguments.seed, position.epochs)
        return Batches(
            self.dataset.train, order[position.examples :], self.batch_size, self.shard, self.model.classes, self.off
        )  # fmt: skip

    def optimizer_settings(self, position: TrainingPosition) -> dict[str, str | int | float]:
        """The arguments of `steps.make_optimizer`, with the learning rate schedule from this position on."""
        spec = models.MODELS[self.model.name]
        rate = self.arguments.learning_rate or spec.learning_rate
        batch_size = self.batch_size * self.shard.replicas
        peak = steps.scale_learning_rate(
            rate, self.arguments.learning_rate_scaling, batch_size, spec.reference_batch_size
        )
        total = self.steps_left(START)
        return {
            "optimizer": self.arguments.optimizer or spec.optimizer,
            "peak": peak,
            "start": min(rate, peak),
            "steps": total,
            "warmup": self.arguments.warmup,
            "ahead": total - self.steps_left(position) - position.steps,
        }

    def optimizer(self, position: TrainingPosition) -> optax.GradientTransformation:
        return steps.make_optimizer(**self.optimizer_settings(position))  # type: ignore[arg-type]

    def restore_or_initialize(
        self, saver: Saver
    ) -> tuple[State, TrainingPosition, optax.GradientTransformation]:
        """The state of the chief's newest checkpoint, or the initial state.

        The chief broadcasts it, as other processes may not see the same disk. This also keeps them from saving before
        the chief has prepared the job's directory.

        Raises:
            CheckpointError: the checkpoint is of another model or optimizer.
        """
        data = b""
        if self.cluster.is_chief:
            data = saver.newest_checkpoint() or state.checkpoint(
                self.model, state.initial_state(self.model, self.optimizer(START), self.arguments.seed), START
            )
        restored, position = state.restore(self.model, self.optimizer(START), distribute.broadcast(data))
        return restored, position, self.optimizer(position)

    def evaluate(
        self,
        step: steps.EvaluationStep,
        variables: tuple[Any, Any],
        position: TrainingPosition,
        summaries: Summaries,
        run: str = "held_out",
    ) -> float:
        """The held-out accuracy; all processes call this together, the chief reports it under the run's name."""
        # A small held-out set in large batches would be mostly padding.
        largest = max(1, -(-len(self.dataset.held_out) // self.shard.replicas))
        batch_size = min(largest, max(self.batch_size, steps.EVALUATION_BATCH))
        heartbeat = PeriodicReport(self.arguments.heartbeat, "evaluating", step=position.steps)
        loss, accuracy = steps.evaluate(
            self.model, step, variables, self.dataset.held_out, batch_size, self.shard, self.strategy, heartbeat
        )  # fmt: skip
        if self.shard.process_id == 0:
            measured = {"held_out_loss": round(loss, 6), "held_out_accuracy": round(accuracy, 6)}
            report("evaluation", step=position.steps, epoch=position.epochs, **measured)
            summaries.scalars(run, position.steps, **measured)
            summaries.flush()
        return accuracy

    def save_model(self, saver: Saver, trained: State, position: TrainingPosition, accuracy: float) -> None:
        """Export the model; the chief reports its location."""
        facts: dict[str, Any] = {"steps": position.steps, "held_out_accuracy": accuracy}
        facts["parameters_sha256"] = state.parameters_sha256(trained)
        url = saver.save_model(export(self.model, trained, self.dataset.label_names, facts))
        if self.cluster.is_chief:
            report_to_tuning_service(accuracy, position.steps)
            report("saved", model=url)


def prepare(
    arguments: "Arguments", cluster: ClusterSpec, strategy: Strategy, shard: Shard, sharding: Sharding
) -> Experiment:
    """Load the data and build the model; all processes call this together.

    Raises:
        DataError, FileError: the data cannot be used.
        ModelError: the model does not accept it.
    """
    spec = models.MODELS[arguments.model]
    dataset = datasets.load(
        arguments.data, arguments.held_out_data, sharding, arguments.input_shape or spec.input_shape,
        arguments.classes or spec.classes, shard, distribute.gather, arguments.cache,
    )  # fmt: skip
    model = models.Model(
        arguments.model, dataset.input_shape, dataset.input_dtype, len(dataset.label_names), arguments.precision
    )  # fmt: skip
    return Experiment(arguments, cluster, strategy, shard, dataset, model)
