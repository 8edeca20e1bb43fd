"""Training: the same step on every device of every process, with the gradients averaged over all of them.

A name ends in its tensor's shape: L local devices, B examples on one of them, then as in model.py.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from jax.flatten_util import ravel_pytree

from trainer import data, distribute
from trainer.model import Cnn
from trainer.report import Progress, Sums, report
from trainer.saving import Saver, parameters_sha256

if TYPE_CHECKING:
    from trainer.task import Arguments

log = logging.getLogger("trainer")

PyTree = Any

AXIS = "replica"  # the devices of all processes
EVALUATION_BATCH = 128  # examples a step and replica


class State(NamedTuple):
    """What a step changes."""

    params: PyTree
    optimizer: optax.OptState


class Position(NamedTuple):
    """How much of the training is done."""

    steps: int = 0
    epochs: int = 0
    examples: int = 0  # of the epoch under way


TrainStep = Callable[[State, Any, Any, Any], tuple[State, Sums]]
EvaluationStep = Callable[[PyTree, Any, Any, Any], Sums]


def train(arguments: "Arguments", cluster: distribute.Cluster) -> None:
    """Train from the newest checkpoint, or from the start, to the end or until SIGTERM. Every process runs this."""
    should_stop = distribute.stop_watch(cluster)
    dataset = data.load()
    share = data.Share(cluster.process_id, cluster.num_processes, jax.local_device_count())
    model = Cnn(classes=len(dataset.label_names))
    epoch_steps = data.steps_for(len(dataset.train), arguments.batch_size, share)
    optimizer = make_optimizer(arguments.learning_rate, share.replicas, epoch_steps * arguments.epochs)
    train_step, evaluation_step = make_train_step(model, optimizer), make_evaluation_step(model)

    saver = Saver(arguments.job_dir, cluster.process_id, arguments.keep)
    saver.prepare()
    image_shape = dataset.train.images.shape[1:]
    state, position = start_state(model, optimizer, image_shape, arguments.seed, saver, cluster)
    # Laid out as the step leaves it; in another layout, the step would be compiled twice.
    state = jax_utils.replicate(state, axis_name=AXIS)
    steps = position.steps + steps_left(position, arguments, len(dataset.train), share)
    log.info("%d replicas, %d of them here.", share.replicas, share.local_devices)
    log.info("%d of %d steps done.", position.steps, steps)

    progress = Progress(steps, arguments.epochs, arguments.log_every)
    accuracy = None
    while position.epochs < arguments.epochs:
        order = data.shuffled(len(dataset.train), arguments.seed, position.epochs)[position.examples :]
        progress.start_epoch()
        for batch in data.batches(dataset.train, order, arguments.batch_size, share):
            state, sums = train_step(state, batch.images, batch.labels, batch.weights)
            position = Position(position.steps + 1, position.epochs, position.examples + batch.examples)
            progress.add(position.steps, position.epochs + 1, batch.examples, sums)
            if should_stop(position.steps):
                saver.save_checkpoint(position.steps, checkpoint(on_host(state), position))
                saver.close()
                report("stopped", step=position.steps, steps=steps)
                return
        progress.flush()
        position = Position(position.steps, position.epochs + 1)
        saver.save_checkpoint(position.steps, checkpoint(on_host(state), position))
        accuracy = evaluate(evaluation_step, state, position, dataset.held_out, share)

    if accuracy is None:  # there was nothing left to train
        accuracy = evaluate(evaluation_step, state, position, dataset.held_out, share)
    params = on_host(state.params)
    description = {
        "model": {"channels": model.channels, "hidden": model.hidden, "classes": model.classes},
        "input": {"shape": image_shape, "dtype": "float32", "range": [0, 1]},
        "labels": dataset.label_names,
        "steps": position.steps,
        "held_out_accuracy": accuracy,
    }
    where = saver.save_model(params, description)
    saver.close()
    if cluster.is_chief:
        report("saved", model=where)
    report("done", step=position.steps, steps=steps, parameters_sha256=parameters_sha256(params))


def make_optimizer(learning_rate: float, replicas: int, steps: int) -> optax.GradientTransformation:
    """Adam. With more replicas the batch is larger and the steps fewer, so they are longer, though not from the start.

    The rate rises from that of one replica to that of all in the first fifth of the steps, and falls to 0 at the end.
    """
    peak = learning_rate * replicas
    schedule = optax.warmup_cosine_decay_schedule(learning_rate, peak, steps // 5, decay_steps=steps)
    return optax.flatten(optax.adam(schedule))  # over one vector: compiles in half the time of a tree


def make_train_step(model: Cnn, optimizer: optax.GradientTransformation) -> TrainStep:
    """A step of all replicas: (state, images, labels, weights, all [L, ...]) -> (new state, sums over all examples)."""

    def step(
        state: State, images_BHWC: jax.Array, labels_B: jax.Array, weights_B: jax.Array
    ) -> tuple[State, Sums]:
        def loss(params: PyTree) -> tuple[jax.Array, Sums]:
            sums = measure(model, params, images_BHWC, labels_B, weights_B)
            return sums.loss, sums

        gradients, sums = jax.grad(loss, has_aux=True)(state.params)
        # One all-reduce for everything: over a network (and gloo) it costs by the call far more than by the number.
        # What is averaged are sums over examples, padding not counted; their ratio to the number of examples is the
        # mean over all of them, however unevenly the last batch of an epoch fills the replicas.
        flat, unravel = ravel_pytree((gradients, sums))
        gradients, sums = unravel(jax.lax.pmean(flat, AXIS))
        gradients = jax.tree.map(lambda gradient: gradient / sums.examples, gradients)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        return State(optax.apply_updates(state.params, updates), optimizer_state), sums

    train_step: TrainStep = jax.pmap(step, AXIS, donate_argnums=0)
    return train_step


def make_evaluation_step(model: Cnn) -> EvaluationStep:
    """(params, images, labels, weights, all [L, ...]) -> means over replicas of sums over examples, [L]."""

    def step(params: PyTree, images_BHWC: jax.Array, labels_B: jax.Array, weights_B: jax.Array) -> Sums:
        flat, unravel = ravel_pytree(measure(model, params, images_BHWC, labels_B, weights_B))
        sums: Sums = unravel(jax.lax.pmean(flat, AXIS))
        return sums

    evaluation_step: EvaluationStep = jax.pmap(step, AXIS)
    return evaluation_step


def measure(
    model: Cnn, params: PyTree, images_BHWC: jax.Array, labels_B: jax.Array, weights_B: jax.Array
) -> Sums:
    """Loss (cross-entropy), right answers and examples, each summed with the weights."""
    logits_BK = cast("jax.Array", model.apply({"params": params}, images_BHWC))
    losses_B = optax.softmax_cross_entropy_with_integer_labels(logits_BK, labels_B)
    correct_B = jnp.argmax(logits_BK, axis=-1) == labels_B
    return Sums(jnp.sum(weights_B * losses_B), jnp.sum(weights_B * correct_B), jnp.sum(weights_B))


def evaluate(
    step: EvaluationStep, state: State, position: Position, split: data.Split, share: data.Share
) -> float:
    """The accuracy on a split, each process having taken its part of it; the chief reports it."""
    sums = [
        on_host(step(state.params, batch.images, batch.labels, batch.weights))
        for batch in data.batches(split, np.arange(len(split)), EVALUATION_BATCH, share)
    ]
    loss, correct, examples = np.sum(sums, axis=0).tolist()
    accuracy: float = correct / examples
    if share.process_id == 0:
        report(
            "evaluation",
            step=position.steps,
            epoch=position.epochs,
            held_out_loss=round(loss / examples, 6),
            held_out_accuracy=round(accuracy, 6),
        )
    return accuracy


def start_state(
    model: Cnn,
    optimizer: optax.GradientTransformation,
    image_shape: tuple[int, ...],
    seed: int,
    saver: Saver,
    cluster: distribute.Cluster,
) -> tuple[State, Position]:
    """What the chief's newest checkpoint holds or, where there is none, parameters drawn by the seed.

    All processes take the chief's, so that they start alike even where they do not see the same disk; and none gets
    past this point, to save anything, before the chief has prepared the job's directory.

    Raises:
        ValueError: the checkpoint is of another model.
    """

    def drawn() -> State:
        key = jax.random.key(seed, impl="rbg")  # compiles in a third of the time that the default needs
        params = model.init(key, jnp.zeros((1, *image_shape)))["params"]
        return State(params, optimizer.init(params))

    chiefs = b""
    if cluster.is_chief:
        chiefs = saver.newest_checkpoint() or checkpoint(jax.device_get(jax.jit(drawn)()), Position())
    template = {"state": jax.eval_shape(drawn), "position": Position()}
    agreed = distribute.broadcast(chiefs)
    try:
        restored = flax.serialization.from_bytes(template, agreed)
        fits = jax.tree.map(np.shape, restored) == jax.tree.map(np.shape, template)
    except ValueError:  # other layers
        fits = False
    if not fits:
        raise ValueError("The checkpoint in --job-dir is of another model; choose another --job-dir.")
    return restored["state"], restored["position"]


def steps_left(position: Position, arguments: "Arguments", examples: int, share: data.Share) -> int:
    """Steps from here to the end of training on so many examples."""
    if position.epochs >= arguments.epochs:
        return 0
    of_this_epoch = data.steps_for(examples - position.examples, arguments.batch_size, share)
    of_an_epoch = data.steps_for(examples, arguments.batch_size, share)
    return of_this_epoch + of_an_epoch * (arguments.epochs - position.epochs - 1)


def checkpoint(state: State, position: Position) -> bytes:
    """All that it takes to go on from here."""
    data: bytes = flax.serialization.to_bytes({"state": state, "position": position})
    return data


def on_host(tree: PyTree) -> PyTree:
    """Of what all devices hold alike [L, ...], this process's first copy as NumPy arrays [...]."""
    return jax.tree.map(lambda array: np.asarray(array.addressable_data(0))[0], tree)
