"""Data-parallel training with pmap, in one file that you own: copy it and change what you like.

    python -m trainer.task --epochs 5 --job-dir output         # on all devices of this machine
    jobs submit training --config config.yaml -- --epochs 5    # on a chief and a worker

Each process of a job runs this file; TF_CONFIG says which it is. Every device has a copy of the state and a part of
each batch, and pmap sums the gradients of all. The chief saves to --job-dir, a path or gs://BUCKET/DIRECTORY, where the
same command continues. SIGTERM saves and ends with 0. Names end in shapes: B examples of a device, N of all, K classes.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy
from flax.jax_utils import replicate, unreplicate
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental import multihost_utils

KEEP, LOG_EVERY = 2, 10  # checkpoints; steps between two progress lines


@dataclasses.dataclass(frozen=True)
class Config:
    """The flags: --batch-size is the field batch_size."""

    epochs: int = 5
    batch_size: int = 16  # examples of one step on one device
    learning_rate: float = 0.002
    seed: int = 0
    checkpoint_every: int = 0  # steps; 0: at the end of each epoch
    job_dir: str = os.environ.get("TRAINYARD_JOB_DIR") or "output"
    predict: int = 0  # in place of training, predict so many held-out digits


class Network(nn.Module):
    @nn.compact
    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        x_BHWC = nn.relu(nn.Conv(32, (3, 3))(x_BHWC))
        x_BHWC = nn.relu(nn.Conv(64, (3, 3), strides=2)(x_BHWC))
        x_BK: jax.Array = nn.Dense(10)(nn.relu(nn.Dense(128)(x_BHWC.reshape(len(x_BHWC), -1))))
        return x_BK


def load_digits() -> tuple[Any, Any, Any, Any]:
    """Images [N, 8, 8, 1] and labels [N] to train on, then those that are held out: always the same 360."""
    from sklearn.datasets import load_digits  # a slow import

    digits = load_digits()
    order = np.random.default_rng(1797).permutation(len(digits.target))
    images, labels = (digits.images[order, :, :, None] / 16).astype(np.float32), digits.target[order].astype(np.int32)
    return images[360:], labels[360:], images[:360], labels[:360]


def join_cluster() -> None:
    """Connect the chief and the workers of TF_CONFIG, so that JAX sees the devices of all. The chief is process 0."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster = config.get("cluster", {})
    tasks = [(kind, i) for kind in ("chief", "master", "worker") for i in range(len(cluster.get(kind, ())))]
    if len(tasks) > 1:
        chief, own = cluster[tasks[0][0]][0], tasks.index((config["task"]["type"], int(config["task"]["index"])))
        jax.distributed.initialize(chief, len(tasks), own, heartbeat_timeout_seconds=20)


class Folder:
    """Files below a path or gs://BUCKET/DIRECTORY. A file appears whole or not at all."""

    def __init__(self, url: str) -> None:
        self._bucket: Any = None
        self._root: Any = Path(url)
        if url.startswith("gs://"):
            from google.cloud import storage

            bucket, _, directory = url.removeprefix("gs://").partition("/")
            self._bucket, self._root = storage.Client().bucket(bucket), PurePosixPath(directory)

    def names(self, folder: str) -> list[str]:
        """Sorted names of the files in a folder, such as `checkpoints/step-00000045`."""
        if self._bucket is not None:
            paths = [PurePosixPath(blob.name) for blob in self._bucket.list_blobs(prefix=f"{self._root / folder}/")]
        else:
            paths = [path for path in (self._root / folder).glob("*") if path.suffix != ".partial"]
        return sorted(f"{folder}/{path.name}" for path in paths)

    def read(self, name: str) -> bytes:
        path = self._root / name
        return bytes(path.read_bytes() if self._bucket is None else self._bucket.blob(str(path)).download_as_bytes())

    def write(self, name: str, data: bytes) -> None:
        path = self._root / name
        if self._bucket is not None:
            self._bucket.blob(str(path)).upload_from_string(data)  # atomic
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(data)
        partial.replace(path)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder whose name ends in `/`."""
        path = self._root / name
        if self._bucket is not None:
            self._bucket.delete_blobs(list(self._bucket.list_blobs(prefix=f"{path}{'/' * name.endswith('/')}")))
        elif name.endswith("/"):
            shutil.rmtree(path)
        else:
            path.unlink()


def save(folder: Folder, state: Any, step: int) -> None:
    """Save in every process: the chief to --job-dir, the others to a temporary directory of theirs, which is removed.
    (With pmap each has the whole state, and only the chief's counts. To save one that is divided takes all of them.)"""
    temporary = f"workertemp_{jax.process_index()}/" if jax.process_index() else ""
    folder.write(f"{temporary}checkpoints/step-{step:08d}", flax.serialization.to_bytes(unreplicate(state)))
    if temporary:
        folder.remove(temporary)
        return
    for old in folder.names("checkpoints")[:-KEEP]:
        folder.remove(old)
    report("checkpoint", step=step)


def restore(folder: Folder, state: Any) -> tuple[Any, int]:
    """The newest checkpoint on the devices and its step, else the given state and 0. The chief reads it for all."""
    step = 0
    if jax.process_index() == 0 and (names := folder.names("checkpoints")):
        state = flax.serialization.from_bytes(state, folder.read(names[-1]))
        step = int(names[-1][-8:])
    if jax.process_count() > 1:
        state, step = multihost_utils.broadcast_one_to_all((state, np.int32(step)))
    return replicate(state), int(step)


def stop_check() -> Callable[[int], bool]:
    """A function of the step: whether SIGTERM came. All processes of a job answer alike at the same step."""
    if jax.process_count() > 1:
        return multihost_utils.reached_preemption_sync_point
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    return lambda _step: bool(received)


def report(event: str, **values: Any) -> None:
    """A progress line: `jobs stream-logs` shows them as a bar, the dashboard as curves."""
    print(json.dumps({"event": event, **values}), flush=True)


def train(config: Config) -> None:
    local, process, global_batch = jax.local_device_count(), jax.process_index(), config.batch_size * jax.device_count()
    images, labels, held_out_images, held_out_labels = load_digits()
    steps_per_epoch = -(-len(labels) // global_batch)
    steps = config.epochs * steps_per_epoch
    network = Network()
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0, config.learning_rate, steps // 5, max(steps, 2)))

    def loss(params: Any, x_BHWC: jax.Array, labels_B: jax.Array, weights_B: jax.Array) -> jax.Array:
        losses_B = optax.softmax_cross_entropy_with_integer_labels(network.apply(params, x_BHWC), labels_B)
        return jnp.sum(weights_B * losses_B)

    @functools.partial(jax.pmap, axis_name="devices", donate_argnums=0)
    def train_step(state: Any, x_BHWC: jax.Array, labels_B: jax.Array, weights_B: jax.Array) -> tuple[Any, jax.Array]:
        params, optimizer_state = state
        sums = jax.value_and_grad(loss)(params, x_BHWC, labels_B, weights_B), jnp.sum(weights_B)
        (total, gradients), examples = jax.lax.psum(sums, "devices")  # over all devices of all processes
        gradients = jax.tree.map(lambda gradient: gradient / examples, gradients)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), total / examples

    def batch_of(step: int) -> Any:
        """This process's part of a batch, by device. The last one of an epoch is padded with weights of 0."""
        epoch, number = divmod(step, steps_per_epoch)
        size = config.batch_size * local
        at = number * global_batch + process * size + np.arange(size)
        rows = np.random.default_rng([config.seed, epoch]).permutation(len(labels))[at % len(labels)]
        parts = images[rows], labels[rows], (at < len(labels)).astype(np.float32)
        return tuple(part.reshape(local, config.batch_size, *part.shape[1:]) for part in parts)

    @jax.jit
    def accuracy(params: Any) -> jax.Array:
        logits_NK: Any = network.apply(params, held_out_images)
        return jnp.mean(jnp.argmax(logits_NK, axis=-1) == held_out_labels)

    folder, should_stop, began = Folder(config.job_dir), stop_check(), time.perf_counter()
    params = network.init(jax.random.key(config.seed), images[:1])
    state, first = restore(folder, (params, optimizer.init(params)))
    report("begin", step=first, steps=steps)
    for step in range(first + 1, steps + 1):
        state, mean_loss = train_step(state, *batch_of(step - 1))
        epoch, in_epoch = divmod(step, steps_per_epoch)
        if step % LOG_EVERY == 0:
            rate, began = LOG_EVERY * global_batch / (time.perf_counter() - began), time.perf_counter()
            values = {"loss": round(float(unreplicate(mean_loss)), 6), "examples_per_second": round(rate, 1)}
            report(
                "progress", step=step, steps=steps, epoch=-(-step // steps_per_epoch), epochs=config.epochs, **values
            )
        if in_epoch == 0 and process == 0:
            value = round(float(accuracy(unreplicate(state)[0])), 4)
            report("evaluation", step=step, epoch=epoch, held_out_accuracy=value)
        stop = should_stop(step)
        if stop or step == steps or (step % config.checkpoint_every if config.checkpoint_every else in_epoch) == 0:
            save(folder, state, step)
        if stop and step < steps:
            report("stopped", step=step, steps=steps)
            return
    trained = flatten_dict(jax.device_get(unreplicate(state)[0]), sep="/")
    if process == 0:
        folder.write("model/parameters.safetensors", safetensors.numpy.save(trained))
        report("saved", model=f"{config.job_dir}/model")
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in trained.values()))
    report("done", step=steps, steps=steps, parameters_sha256=digest.hexdigest())


def predict(config: Config) -> None:
    """Print predictions of held-out digits by the model in --job-dir."""
    *_, images, labels = load_digits()
    parameters = safetensors.numpy.load(Folder(config.job_dir).read("model/parameters.safetensors"))
    logits_NK: Any = Network().apply(unflatten_dict(parameters, sep="/"), images[: config.predict])
    for number, prediction in enumerate(jnp.argmax(logits_NK, axis=-1)):
        print(f"held-out digit {number}: predicted {prediction}, is {labels[number]}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    flags = Config(**vars(parser.parse_args()))
    try:
        join_cluster()
        predict(flags) if flags.predict else train(flags)
        jax.distributed.shutdown()  # waits for all processes
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)  # at once, so that no process waits for this one
    os._exit(0)  # at once, as a job ends when its chief does
