"""Setup shared by all roles: data, model, optimizer, restoring, evaluation and export."""

import dataclasses
import functools
import hashlib
import json
import logging
import math
import re
import secrets
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from trainyard_trainer.arguments import Arguments, FlagError
from trainyard_trainer.data import datasets
from trainyard_trainer.data.augmentation import Augmentation
from trainyard_trainer.data.datasets import Shard, Sharding
from trainyard_trainer.data.files import texts
from trainyard_trainer.data.sharding import Batches, check_labels, epoch_order, steps_for
from trainyard_trainer.data.text import Tokenizer, decode, read_tokenizer, sample, tokenizer_of
from trainyard_trainer.errors import CheckpointError, TaskError, TrainerError, TrainerUsageError
from trainyard_trainer.models import gpt2
from trainyard_trainer.models import model as models
from trainyard_trainer.models.checks import check_task, label
from trainyard_trainer.models.kinds import kind
from trainyard_trainer.models.lora import merged, with_lora
from trainyard_trainer.models.model import Model
from trainyard_trainer.models.names import names
from trainyard_trainer.models.task import Evaluation, TrainingTask, cross_entropy, in_bfloat16, load_task
from trainyard_trainer.output.export import ModelFunction, export_function, model_files, summary
from trainyard_trainer.output.index import CheckpointEntry
from trainyard_trainer.output.report import PeriodicReport, report
from trainyard_trainer.output.saving import Saver
from trainyard_trainer.output.summaries import Summaries, report_to_tuning_service
from trainyard_trainer.processes import distribute
from trainyard_trainer.processes.cluster import ClusterSpec
from trainyard_trainer.training import diagnosis, optimizers, state, steps, weights
from trainyard_trainer.training.flags import check_data_flags, check_flags, check_rate
from trainyard_trainer.training.state import START, State, TrainingPosition
from trainyard_trainer.training.strategy import Strategy

log = logging.getLogger("trainer")

DEFAULT_EPOCHS = 5


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The data, model and flags of one process.

    Attributes:
        shard: its part of the data.
        exported: the model without --lora.
    """

    arguments: Arguments
    cluster: ClusterSpec
    strategy: Strategy
    shard: Shard
    dataset: datasets.Dataset
    model: Model
    exported: Model

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
            self.dataset.train, order, self.batch_size, self.shard, self.model.label_limit, self.off, augment,
            position.examples,
        )  # fmt: skip

    def optimizer(self, position: TrainingPosition) -> optax.GradientTransformation:
        """The optimizer of the flags, with the learning rate schedule from this position on."""
        task = self.model.task
        rate = self.arguments.learning_rate or task.learning_rate
        batch_size = self.batch_size * self.shard.replicas
        peak = optimizers.scale_learning_rate(
            rate, self.arguments.learning_rate_scaling, batch_size, task.reference_batch_size
        )
        total = self.steps_left(START)
        ahead = total - self.steps_left(position) - position.steps
        optimizer = optimizers.make_optimizer(
            task.optimizer or optax.adam, peak, min(rate, peak), total, self.arguments.warmup, ahead
        )
        if self.arguments.lora or self.arguments.freeze:
            optimizer = optimizers.only(optimizer, self.trains)
        return optimizers.with_average(optimizer, self.arguments.ema) if self.arguments.ema else optimizer

    def trains(self, name: str) -> bool:
        """Whether a parameter, by its name, is trained."""
        if self.arguments.lora:
            return name.startswith("lora/")
        return self.arguments.freeze is None or not re.search(self.arguments.freeze, name)

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
        """The state of the newest checkpoint, or the initial state, on the devices.

        The chief broadcasts it, as other processes may not see the same disk, unless the state is divided over them.

        Raises:
            CheckpointError: the checkpoints are of another training.
            JobDirLockedError: another trainer writes to the job directory.
        """
        optimizer, strategy = self.optimizer(START), self.strategy
        task = self.model.task
        if not optimizers.reads_rate(task.optimizer or optax.adam, self.model.params.shapes, label(task)):
            check_rate(self.arguments, task)
        shapes = state.state_shapes(self.model, optimizer)
        own: State | None = None
        header: dict[str, Any] = {"position": START._asdict(), "checkpoint": None}
        if self.cluster.is_chief:
            try:
                saver.prepare(self.fingerprint())
                newest = saver.newest(read=strategy.whole)
                if newest:
                    entry, arrays = newest
                    header = {"position": entry.position, "checkpoint": entry._asdict()}
                    own = state.from_arrays(shapes, arrays) if strategy.whole else None
            except TrainerUsageError as error:  # all processes end with it
                header = {"error": str(error)}
        header = json.loads(distribute.broadcast(json.dumps(header).encode()))
        if "error" in header:
            raise CheckpointError(header["error"])
        position = TrainingPosition(**header["position"])
        if not strategy.whole:
            self._check_shared(saver)
        if header["checkpoint"] is None:
            training = self._initialized(optimizer, shapes)
        elif strategy.whole:
            training = strategy.replicate(_broadcast(own, shapes))
        else:
            pieces = saver.pieces(CheckpointEntry(**header["checkpoint"]))
            training = state.from_pieces(shapes, strategy.shardings(shapes), pieces)  # type: ignore[attr-defined]
        return training, position, self.optimizer(position)

    def _initialized(self, optimizer: optax.GradientTransformation, shapes: State) -> State:
        """The state before the first step, on the devices."""
        initial = functools.partial(state.initial, self.model, optimizer, self.arguments.seed)
        if self.cluster.num_processes == 1 or not self.strategy.whole:
            return self.strategy.initialize(initial, self._loaded())
        own = jax.device_get(jax.jit(initial)(self._loaded())) if self.cluster.is_chief else None
        return self.strategy.replicate(_broadcast(own, shapes))

    def _loaded(self) -> dict[str, NDArray[Any]]:
        """The values of --init-from, by their names."""
        if self.arguments.init_from is None:
            return {}
        trees = {"params": self.model.params.shapes, "batch_stats": self.model.statistics.shapes}
        return weights.load(self.arguments.init_from, trees, self.arguments.init_skip)

    def _check_shared(self, saver: Saver) -> None:
        """Raises CheckpointError if the processes do not see one job directory: each saves its part of the state."""
        token = f"token-{distribute.broadcast(secrets.token_hex(8).encode()).decode()}"
        if self.cluster.is_chief:
            saver.write_token(token)
        distribute.gather(np.zeros(1, np.int64))  # it is written
        sees = int(saver.sees_token(token))
        everybody = distribute.gather(np.array([sees], np.int64)).all()
        if self.cluster.is_chief:
            saver.remove_token(token)
        if not everybody:
            raise CheckpointError(
                f"The processes of this job do not see one --job-dir {self.arguments.job_dir}. Where the state is "
                "divided over them, each saves its part: choose gs://... or a disk that all of them have."
            )

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
        if not math.isfinite(evaluated["loss"]):
            held_out = self.dataset.held_out
            if problem := diagnosis.wrong_values(held_out, np.arange(len(held_out)), self.model, self.shard):
                log.warning("The loss of the held-out data is %s. %s", evaluated["loss"], problem)
        if self.shard.process_id == 0:
            measured = {f"held_out_{name}": round(value, 6) for name, value in evaluated.items()}
            report("evaluation", step=position.steps, epoch=position.epochs, **measured)
            summaries.scalars(run, position.steps, **measured)
            summaries.flush()
        if self.cluster.is_chief:
            report_to_tuning_service(evaluated, position.steps, self.best_metric)
        if self.model.task.on_evaluation is not None:
            params, statistics = self.strategy.to_host(variables)
            if self.shard.process_id == 0:
                infer = functools.partial(_jitted_infer(self.model), params, statistics)
                self.model.task.on_evaluation(Evaluation(position.steps, evaluated, infer))
        return evaluated

    def cause(self, error: TrainerError, position: TrainingPosition) -> TrainerError:
        """The error of values in the examples of the last steps, if they explain one of a loss that is not finite."""
        steps_since_report = 2 * self.arguments.log_every + 1
        examples = steps_since_report * self.batch_size * self.shard.replicas
        return diagnosis.cause(error, self.dataset, self.model, self.shard, self.arguments.seed, position, examples)

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

    def best_variables(self, saver: Saver, last: Any, position: TrainingPosition) -> tuple[Any, TrainingPosition]:
        """The variables of the best evaluation, on the devices; the last ones if its checkpoint is missing."""
        best = saver.best() if self.cluster.is_chief else None
        header = json.loads(distribute.broadcast(json.dumps(best and best[0].position).encode()))
        if header is None:
            return last, position
        log.info("The state of step %d is exported: its evaluation was the best.", header["steps"])
        shapes = state.state_shapes(self.model, self.optimizer(START))
        own = state.from_arrays(shapes, best[1]) if best else None
        variables = steps.evaluated_variables(_broadcast(own, shapes))
        return self.strategy.replicate(variables), TrainingPosition(**header)

    def export_function(self) -> ModelFunction | None:
        """The network that the chief will export. It is known before the first step: what cannot be exported is too."""
        if not self.cluster.is_chief:
            return None
        return export_function(self.exported, self.batch_size, self.dataset.label_names)

    def save_model(
        self,
        saver: Saver,
        function: ModelFunction | None,
        params: Any,
        statistics: Any,
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
        facts["parameters_sha256"] = state.parameters_sha256(params)
        try:
            params = merged(params) if self.arguments.lora else params
            files = model_files(function, self.exported, params, statistics, facts)
        except Exception as error:  # noqa: BLE001 - of any kind, such as too little memory
            log.warning(
                "There is no model, as it could not be made; the last checkpoint has what was trained. (%s)",
                summary(error),
            )
            return
        report("saved", model=saver.save_model(files))


@functools.cache
def _jitted_infer(model: Model) -> Callable[[Any, Any, Any], Any]:
    """(params, statistics, inputs) -> outputs, on one device of this process."""
    return jax.jit(lambda params, statistics, inputs: model.infer(params, model.statistics.unravel(statistics), inputs))


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
    arguments: Arguments, task: TrainingTask, cluster: ClusterSpec, strategy: Strategy, shard: Shard, sharding: Sharding
) -> Experiment:
    """Load the data and build the model; all processes call this together.

    Raises:
        DataError, FileError: the data cannot be used.
        ModelError: the model does not accept it.
    """
    task = _in_sizes_of_file(arguments, task, cluster)
    tokenizer, classes = _tokenizer(arguments, cluster), arguments.classes or task.classes
    if task.data is None:
        dataset = datasets.load(
            arguments.data, arguments.held_out_data, sharding, arguments.input_shape or task.input_shape,
            classes if tokenizer is None else len(tokenizer), shard, distribute.gather, arguments.cache,
            arguments.stream, tokenizer,
        )  # fmt: skip
    else:
        data = task.data()
        if not isinstance(data, datasets.Dataset):
            raise TaskError(
                f"The {label(task)}: `data` returns {kind(data)}; it returns from_arrays(...) with the examples."
            )
        dataset = datasets.in_memory("the data of the task", data, sharding)
    check_data_flags(arguments, dataset)
    metrics = ("loss", *task.metrics)
    if arguments.best is not None and arguments.best[0] not in metrics:
        raise TaskError(f"--best {':'.join(arguments.best)}: the {label(task)} has {', '.join(metrics)}.")
    if arguments.augment and len(dataset.input_shape) != 3:
        raise datasets.DataError(
            f"--augment is for images [H, W, C]; the data has {dataset.input_dtype} {list(dataset.input_shape)}."
        )
    if arguments.label_smoothing:
        task = dataclasses.replace(task, loss=functools.partial(cross_entropy, smoothing=arguments.label_smoothing))
    if arguments.mixup and dataset.input_dtype.kind == "i":
        raise TaskError("--mixup is for images and other numbers; the data has tokens.")
    if arguments.sample:
        task = dataclasses.replace(task, on_evaluation=_sampler(arguments, dataset, tokenizer, task.on_evaluation))
    exported = model = Model(task, dataset.input_shape, dataset.input_dtype, len(dataset.label_names), dataset.layouts)
    if arguments.lora:
        network = with_lora(exported.network, arguments.lora, arguments.lora_on, arguments.precision)
        model = Model(
            dataclasses.replace(task, network=network), dataset.input_shape, dataset.input_dtype, exported.classes,
            dataset.layouts,
        )  # fmt: skip
    if arguments.freeze:
        _check_frozen(model, arguments)
    for split in (dataset.train, dataset.held_out):
        for examples in split.files:
            if isinstance(examples, datasets.Arrays):  # all at once; those of files as they are read
                check_labels(split, np.arange(len(examples)), examples.labels, model.label_limit)
    return Experiment(arguments, cluster, strategy, shard, dataset, model, exported)


def _tokenizer(arguments: Arguments, cluster: ClusterSpec) -> Tokenizer | None:
    """The tokenizer of --tokenizer, which the chief trains for all."""
    name = arguments.tokenizer
    if name is None:
        return None

    def content() -> bytes:
        return tokenizer_of(name, arguments.job_dir, lambda: texts(arguments.data)).content

    return read_tokenizer(_of_chief(cluster, content, datasets.DataError), name)


def _in_sizes_of_file(arguments: Arguments, task: TrainingTask, cluster: ClusterSpec) -> TrainingTask:
    """--model gpt2 in the sizes of the GPT-2 of --init-from; any other task as it is."""
    url = arguments.init_from
    if url is None or arguments.task is not None or not task.name == arguments.model == "gpt2":
        return task

    def content() -> bytes:
        return json.dumps(weights.gpt2_sizes(url)).encode()

    sizes = json.loads(_of_chief(cluster, content, CheckpointError))
    sized = models.built_in("gpt2", arguments.precision, spec=models.gpt2_spec(gpt2.Sizes(*sizes)))
    return dataclasses.replace(sized, optimizer=task.optimizer)


def _of_chief(cluster: ClusterSpec, read: Callable[[], bytes], refusal: type[TrainerUsageError]) -> bytes:
    """A content that the chief alone reads, in all processes, which all end with its error. An evaluator reads it."""
    content = error = b""
    if cluster.is_chief or cluster.role == "evaluator":
        try:
            content = read()
        except TrainerUsageError as refused:
            error = str(refused).encode()
    error = distribute.broadcast(error)
    if error:
        raise refusal(error.decode())
    return distribute.broadcast(content)


def _sampler(
    arguments: Arguments,
    dataset: datasets.Dataset,
    tokenizer: Tokenizer | None,
    on_evaluation: Callable[[Evaluation], None] | None,
) -> Callable[[Evaluation], None]:
    """Report a continuation of held-out text, of --sample tokens, and call the task's own `on_evaluation`."""
    if len(dataset.input_shape) != 1 or dataset.input_dtype != np.int32:
        raise TaskError(f"--sample is for text; the data has {dataset.input_dtype} {list(dataset.input_shape)}.")
    length = dataset.input_shape[0]
    prompt = dataset.held_out.rows(np.arange(1))[0][0, : max(1, length // 2)]
    read = functools.partial(decode, tokenizer, classes=len(dataset.label_names))

    def report_sample(evaluation: Evaluation) -> None:
        tokens = sample(evaluation.infer, prompt, arguments.sample, length, arguments.seed + evaluation.step)
        report("sample", step=evaluation.step, prompt=read(prompt), text=read(tokens))
        if on_evaluation is not None:
            on_evaluation(evaluation)

    return report_sample


def _check_frozen(model: Model, arguments: Arguments) -> None:
    """Raises TaskError if --freeze is of no parameter, or of all."""
    if arguments.lora:
        raise TaskError("--lora freezes everything else: leave --freeze out.")
    all_names = jax.tree.leaves(names(model.params.shapes))
    frozen = [name for name in all_names if re.search(str(arguments.freeze), name)]
    if not frozen or len(frozen) == len(all_names):
        raise TaskError(
            f"--freeze {arguments.freeze} matches {len(frozen)} of {len(all_names)} parameters: "
            f"{', '.join(all_names[:3])} and "
            "so on. Some must match, and some must not."
        )


def batches_of(arguments: Arguments, replicas: int) -> Arguments:
    """The flags with the pieces of --global-batch for so many replicas.

    Raises:
        FlagError: the replicas cannot divide it.
    """
    if arguments.global_batch is None:
        return arguments
    if arguments.accumulate > 1:
        raise FlagError("--global-batch chooses --accumulate itself: leave one of them out.")
    each = arguments.global_batch // replicas
    if each * replicas != arguments.global_batch:
        raise FlagError(f"--global-batch {arguments.global_batch} must be a multiple of the {replicas} replicas.")
    pieces = next(count for count in range(1, each + 1) if each % count == 0 and each // count <= arguments.batch_size)
    return dataclasses.replace(arguments, batch_size=each // pieces, accumulate=pieces)


def task_of(arguments: Arguments, own: TrainingTask | None = None) -> TrainingTask:
    """The task that is trained: `own`, that of --task, or --model, with the optimizer and precision of the flags.

    Raises:
        TaskError: the task cannot be used.
        FlagError: a flag is given that it would ignore.
    """
    if own is not None and arguments.task is not None:
        raise FlagError(f"--task {arguments.task} is given, and this file trains a task of its own: leave it out.")
    is_own = own is not None or arguments.task is not None
    if own is None:
        own = load_task(arguments.task) if arguments.task else models.built_in(arguments.model, arguments.precision)
    check_task(own)
    check_flags(arguments, own, is_own)
    if own.optimizer is None:
        name = arguments.optimizer or ("adam" if is_own else models.MODELS[arguments.model].optimizer)
        make = functools.partial(optimizers.OPTIMIZERS[name], decay=arguments.weight_decay)
        own = dataclasses.replace(own, optimizer=make)
    if is_own and arguments.precision == "bfloat16":
        own = dataclasses.replace(own, network=in_bfloat16(own.network))
    return own
