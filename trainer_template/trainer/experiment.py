"""What the flags ask for, put together: data, model, optimizer and strategy, the same for every role."""

import dataclasses
from typing import TYPE_CHECKING, Any

import optax

from trainer import data, distribute, models, state, steps
from trainer.cluster import Cluster
from trainer.export import export
from trainer.report import Whenever, report
from trainer.saving import Saver
from trainer.sharding import Batches, epoch_order, steps_for
from trainer.state import Position, State
from trainer.strategy import Strategy
from trainer.summaries import Summaries, report_to_tuning_service

if TYPE_CHECKING:
    from trainer.task import Arguments


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One process's view of the training. `share` is its part of the data."""

    arguments: "Arguments"
    cluster: Cluster
    strategy: Strategy
    share: data.Share
    dataset: data.Dataset
    model: models.Model

    @property
    def off(self) -> bool:
        return self.dataset.sharding == "off"

    @property
    def batch_size(self) -> int:
        """Of one replica."""
        return self.arguments.batch_size

    def steps_left(self, position: Position) -> int:
        """Steps from here to the end of the last epoch, on as many replicas as now."""
        if position.epochs >= self.arguments.epochs:
            return 0
        left = len(self.dataset.train) - position.examples
        of_this_epoch = steps_for(left, self.batch_size, self.share, self.off)
        return of_this_epoch + self.steps_of_an_epoch * (self.arguments.epochs - position.epochs - 1)

    @property
    def steps_of_an_epoch(self) -> int:
        return steps_for(len(self.dataset.train), self.batch_size, self.share, self.off)

    def epoch_batches(self, position: Position) -> Batches:
        """What is left of the epoch at this position."""
        order = epoch_order(self.dataset, self.share, self.arguments.seed, position.epochs)
        return Batches(
            self.dataset.train, order[position.examples :], self.batch_size, self.share, self.model.classes, self.off
        )  # fmt: skip

    def optimizer_settings(self, position: Position) -> dict[str, str | int | float]:
        """What `steps.make_optimizer` takes, with the learning rate's schedule as it is from this position on."""
        kind = models.KINDS[self.model.name]
        rate = self.arguments.learning_rate or kind.learning_rate
        batch_size = self.batch_size * self.share.replicas
        peak = steps.scaled_rate(
            rate, self.arguments.learning_rate_scaling, batch_size, kind.reference_batch_size
        )
        total = self.steps_left(Position())
        return {
            "optimizer": self.arguments.optimizer or kind.optimizer,
            "peak": peak,
            "start": min(rate, peak),
            "steps": total,
            "warmup": self.arguments.warmup,
            "ahead": total - self.steps_left(position) - position.steps,
        }

    def optimizer(self, position: Position) -> optax.GradientTransformation:
        return steps.make_optimizer(**self.optimizer_settings(position))  # type: ignore[arg-type]

    def start(self, saver: Saver) -> tuple[State, Position, optax.GradientTransformation]:
        """What the chief's newest checkpoint holds or, where there is none, parameters drawn by the seed.

        All processes take the chief's, so that they start alike even where they do not see the same disk; and none
        gets past this point, to save anything, before the chief has prepared the job's directory.

        Raises:
            CheckpointError: the checkpoint is of another model.
        """
        chiefs = b""
        if self.cluster.is_chief:
            chiefs = saver.newest_checkpoint() or state.checkpoint(
                self.model, state.first_state(self.model, self.optimizer(Position()), self.arguments.seed), Position()
            )  # fmt: skip
        restored, position = state.restore(
            self.model, self.optimizer(Position()), distribute.broadcast(chiefs)
        )
        return restored, position, self.optimizer(position)

    def evaluate(
        self,
        step: steps.EvaluationStep,
        variables: tuple[Any, Any],
        position: Position,
        summaries: Summaries,
        run: str = "held_out",
    ) -> float:
        """The accuracy on the held-out examples, each process having taken its part; the chief tells of it.

        Args:
            variables: parameters and statistics, as the strategy has them.
            run: whose curves these are.
        """
        # A small held-out set in large batches would be mostly padding.
        most = max(1, -(-len(self.dataset.held_out) // self.share.replicas))
        batch_size = min(most, max(self.batch_size, steps.EVALUATION_BATCH))
        tell = Whenever(self.arguments.heartbeat, "evaluating", step=position.steps)
        loss, accuracy = steps.evaluate(
            self.model, step, variables, self.dataset.held_out, batch_size, self.share, self.strategy, tell
        )
        if self.share.process_id == 0:
            measured = {"held_out_loss": round(loss, 6), "held_out_accuracy": round(accuracy, 6)}
            report("evaluation", step=position.steps, epoch=position.epochs, **measured)
            summaries.scalars(run, position.steps, **measured)
            summaries.flush()
        return accuracy

    def save_model(self, saver: Saver, trained: State, position: Position, accuracy: float) -> None:
        """Export what was learned; the chief says where it is."""
        facts: dict[str, Any] = {"steps": position.steps, "held_out_accuracy": accuracy}
        facts["parameters_sha256"] = state.parameters_sha256(trained)
        where = saver.save_model(export(self.model, trained, self.dataset.label_names, facts))
        if self.cluster.is_chief:
            report_to_tuning_service(accuracy, position.steps)
            report("saved", model=where)


def prepare(
    arguments: "Arguments", cluster: Cluster, strategy: Strategy, share: data.Share, sharding: data.Sharding
) -> Experiment:
    """Load the data and describe the model; the processes that have joined do it together.

    Raises:
        DataError, FileError: the data is not what was asked for.
        ModelError: the model cannot take it.
    """
    kind = models.KINDS[arguments.model]
    dataset = data.load(
        arguments.data,
        arguments.held_out_data,
        sharding,
        arguments.input_shape or kind.input_shape,
        arguments.classes or kind.classes,
        share,
        distribute.gather,
        arguments.cache,
    )
    model = models.Model(
        arguments.model, dataset.input_shape, dataset.input_dtype, len(dataset.label_names), arguments.precision
    )  # fmt: skip
    return Experiment(arguments, cluster, strategy, share, dataset, model)
