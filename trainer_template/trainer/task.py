"""Data-parallel training with pmap, in one file that you own: copy it and change what you like.

    python -m trainer.task --epochs 5 --job-dir output         # on all devices of this machine
    jobs submit training --config config.yaml -- --epochs 5    # on a chief and a worker

Each process of a job runs this file; TF_CONFIG says which it is. Each device has a copy of the state and a part of a
batch; pmap averages the gradients. The chief saves to --job-dir, a path or gs://BUCKET/DIRECTORY, where the same
command continues. SIGTERM saves and ends with 0. Names end in shapes: B examples of a device, N of all, K classes.
"""

import argparse
import fcntl
import hashlib
import io
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy
import sklearn.datasets
from flax.core import pop
from flax.jax_utils import prefetch_to_device, replicate
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.tree_util import keystr

KEEP, LOG_EVERY, REFUSED, DIVERGED = 2, 10, 2, 3  # checkpoints; steps between two progress lines; exit codes
jax.config.update("jax_compilation_cache_dir", os.getenv("JAX_COMPILATION_CACHE_DIR", f"{Path.home()}/.cache/jax"))


class Network(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, train: bool) -> jax.Array:  # noqa: ARG002 - for BatchNorm and Dropout
        x_BHWC = nn.relu(nn.Conv(32, (3, 3), dtype=self.dtype)(x_BHWC))
        x_BHWC = nn.relu(nn.Conv(64, (3, 3), strides=2, dtype=self.dtype)(x_BHWC))
        x_BF = nn.relu(nn.Dense(128, dtype=self.dtype)(x_BHWC.reshape(len(x_BHWC), -1)))
        return jnp.asarray(nn.Dense(10, dtype=self.dtype)(x_BF), jnp.float32)


def load_digits() -> Any:
    """(Images [N, 8, 8, 1], labels [N]) to train on, and those that are held out: always the same 360."""
    digits = sklearn.datasets.load_digits()
    order = np.random.default_rng(1797).permutation(len(digits.target))
    images, labels = (digits.images[order, :, :, None] / 16).astype(np.float32), digits.target[order].astype(np.int32)
    return (images[360:], labels[360:]), (images[:360], labels[:360])


def batches(data: Any, size: int, seed: int = -1, first: int = 0, epochs: int = 1) -> Any:
    """This process's part of each batch, by device, and weights: 0 for what fills up the last one of an epoch."""
    total, devices = len(data[1]), jax.local_device_count()
    steps = -(-total // (size * jax.device_count()))
    for step in range(first, epochs * steps):
        if step == first or step % steps == 0:
            order_N = np.arange(total) if seed < 0 else np.random.default_rng([seed, step // steps]).permutation(total)
        at = size * (step % steps * jax.device_count() + jax.process_index() * devices) + np.arange(size * devices)
        parts = *(array[order_N[at % total]] for array in data), (at < total).astype(np.float32)
        yield tuple(part.reshape(devices, size, *part.shape[1:]) for part in parts)


def join_cluster() -> None:
    """Connect the chief and the workers of TF_CONFIG, so that JAX sees the devices of all. The chief is process 0."""
    cluster = (config := json.loads(os.environ.get("TF_CONFIG") or "{}")).get("cluster", {})
    tasks = [(kind, i) for kind in ("chief", "master", "worker") for i in range(len(cluster.get(kind, ())))]
    if len(tasks) > 1:
        chief, own = cluster[tasks[0][0]][0], tasks.index((config["task"]["type"], int(config["task"]["index"])))
        jax.distributed.initialize(chief, len(tasks), own, heartbeat_timeout_seconds=20)


class Folder:  # below a path or gs://BUCKET/DIRECTORY; a file appears whole or not at all
    def __init__(self, url: str) -> None:
        self._root, self._bucket = Path(url), None  # type: Any, Any
        if url.startswith("gs://"):
            from google.cloud import storage

            bucket, _, directory = url.removeprefix("gs://").partition("/")
            self._root, self._bucket = PurePosixPath(directory), storage.Client().bucket(bucket)

    def checkpoints(self) -> list[str]:
        if self._bucket:
            paths = [PurePosixPath(blob.name) for blob in self._bucket.list_blobs(prefix=f"{self._root}/checkpoints/")]
        else:
            paths = [path for path in (self._root / "checkpoints").glob("*") if path.is_file()]
        return sorted(f"checkpoints/{path.name}" for path in paths if path.match("step-" + 8 * "[0-9]"))

    def read(self, name: str) -> bytes:
        path = self._root / name
        return bytes(self._bucket.blob(str(path)).download_as_bytes() if self._bucket else path.read_bytes())

    def write(self, name: str, *parts: Any) -> str:
        path = self._root / name
        if self._bucket:
            self._bucket.blob(str(path)).upload_from_string(b"".join(parts))  # atomic
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_name(f"{path.name}.{os.uname().nodename}-{os.getpid()}.partial").open("wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(path)
        return name

    def remove(self, name: str) -> None:
        path = self._root / name
        self._bucket.blob(str(path)).delete() if self._bucket else path.unlink()
        if not self._bucket and not any(path.parent.iterdir()):
            path.parent.rmdir()  # with the last file

    def claim(self) -> None:  # ends where nothing can be written or, on a path, another process trains
        try:
            self.remove(self.write(f"claim_{os.getpid()}/file", b""))
            if not self._bucket:
                fcntl.flock(os.open(self._root, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
                for left in self._root.glob("checkpoints/*.partial"):  # by a process that was killed
                    left.unlink()
        except Exception as error:  # noqa: BLE001
            reason = "another process trains there" if isinstance(error, BlockingIOError) else error
            end(REFUSED, f"--job-dir cannot be used: {reason}.")


def save(folder: Folder, state: Any, training: dict[str, Any], step: int) -> None:
    """Write a checkpoint: the SHA-256 of the rest, a line of JSON with what must stay the same, the bytes of arrays."""
    if jax.process_index():  # with pmap a worker has nothing of its own; parts of a divided state would be written here
        folder.remove(folder.write(f"workertemp_{jax.process_index()}/saved", json.dumps({"step": step}).encode()))
        return
    check_finite((state["params"], state["others"]), step)
    name, digest = f"checkpoints/step-{step:08d}", hashlib.sha256()
    if max(folder.checkpoints(), default="") >= name:
        end(REFUSED, f"Another process trains in --job-dir: it has saved {name} or a later one. This one ends.")
    arrays: list[Any] = [np.ascontiguousarray(leaf).reshape(-1).view(np.uint8) for leaf in jax.tree.leaves(state)]
    for part in (parts := [json.dumps(training).encode() + b"\n", *arrays]):
        digest.update(part)
    folder.write(name, digest.digest(), *parts)
    for old in folder.checkpoints()[:-KEEP]:
        folder.remove(old)
    report("checkpoint", step=step)


def restore(folder: Folder, training: dict[str, Any], initial: Any) -> tuple[Any, int]:
    """The state of the newest whole checkpoint and its step, or the initial state and 0."""
    folder.claim()
    for name in reversed(folder.checkpoints()):
        file = io.BytesIO(folder.read(name))
        if file.read(32) != hashlib.sha256(file.getbuffer()[32:]).digest():
            print(f"{name} is damaged: its SHA-256 differs. It is now damaged-{name}.", flush=True)
            folder.write(f"damaged-{name}", file.getbuffer())
            folder.remove(name)
            continue
        was = json.loads(file.readline())
        for key in sorted(dict(was.items() ^ training.items()), reverse=True):
            end(REFUSED, f"--job-dir has a training with {key} {was.get(key)}, not {training.get(key)}: give another.")
        leaves, structure = jax.tree.flatten(initial.eval_shape())
        arrays = [np.frombuffer(file.read(x.size * x.dtype.itemsize), x.dtype).reshape(x.shape) for x in leaves]
        return jax.tree.unflatten(structure, arrays), int(name[-8:])
    return initial(), 0


def on_host(tree: Any) -> Any:
    """The arrays of one device. On a CPU they are views: JAX leaves their memory alone while they are there."""
    return jax.tree.map(lambda x: x[0], jax.device_get(jax.tree.map(lambda x: x.addressable_shards[0].data, tree)))


def check_finite(values: Any, step: int, wait: Callable[[], Any] = int) -> None:
    if not all(np.all(np.isfinite(value)) for value in jax.tree.leaves(values)):
        wait()  # for the save of a checkpoint before this step
        end(DIVERGED, f"Step {step} diverges (NaN or infinity): go on from --job-dir with a lower --learning-rate.")


def report(event: str, **values: Any) -> None:  # `jobs stream-logs` shows these lines as a bar, the dashboard as curves
    print(json.dumps({"event": event, **values}) + "\n", end="", flush=True)


def end(code: int, sentence: str) -> NoReturn:  # at once, so that no process waits for this one
    print(sentence, flush=True)
    os._exit(code)


def train(config: argparse.Namespace) -> None:
    (images, labels), test = load_digits()
    is_chief, examples = jax.process_index() == 0, config.batch_size * jax.device_count()  # of all devices in a step
    steps_per_epoch = -(-len(labels) // examples)
    steps, checkpoint_every = config.epochs * steps_per_epoch, config.checkpoint_every or steps_per_epoch
    network = Network(jnp.dtype(config.dtype))
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0, config.learning_rate, steps // 5, max(steps, 2)))

    @jax.jit
    def initial() -> Any:
        others, params = pop(network.init(jax.random.key(config.seed), images[:1], train=False), "params")
        return {"params": params, "others": others, "optimizer": optimizer.init(params), "step": 0}

    def update(state: Any, x_BHWC: jax.Array, labels_B: jax.Array, weights_B: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.key(config.seed), state["step"])
        keys = {"dropout": jax.random.fold_in(key, jax.lax.axis_index("devices"))}

        def loss(params: Any) -> Any:
            variables, kinds = {"params": params, **state["others"]}, list(state["others"])  # such as batch_stats
            logits_BK, others = network.apply(variables, x_BHWC, train=True, rngs=keys, mutable=kinds)
            return jnp.sum(weights_B * optax.softmax_cross_entropy_with_integer_labels(logits_BK, labels_B)), others

        (total, others), gradients = jax.value_and_grad(loss, has_aux=True)(state["params"])
        values = gradients, others, total, jnp.sum(weights_B)
        vector, tree_of = ravel_pytree(values) if jax.device_count() > 1 else (values, lambda tree: tree)
        gradients, others, total, weight = tree_of(jax.lax.pmean(vector, "devices"))  # all devices of all processes
        gradients = jax.tree.map(lambda gradient: (gradient * (1 / weight)).astype(gradient.dtype), gradients)
        updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["params"])
        params, step = optax.apply_updates(state["params"], updates), state["step"] + 1
        return {"params": params, "others": others, "optimizer": optimizer_state, "step": step}, total / weight

    def count(state: Any, x_BHWC: jax.Array, labels_B: jax.Array, weights_B: jax.Array) -> Any:
        logits_BK: Any = network.apply({"params": state["params"], **state["others"]}, x_BHWC, train=False)
        return jax.lax.psum(jnp.sum(weights_B * (jnp.argmax(logits_BK, axis=-1) == labels_B)), "devices")

    train_step, count_correct = jax.pmap(update, "devices", donate_argnums=0), jax.pmap(count, "devices")
    folder, thread, signals = Folder(config.job_dir), ThreadPoolExecutor(1), list[int]()
    training: Any = {keystr(path): str(leaf.shape) for path, leaf in jax.tree.leaves_with_path(initial.eval_shape())}
    training |= {"--seed": config.seed, "--dtype": config.dtype, "global batch size": examples, "examples": len(labels)}
    state, first = restore(folder, training, initial) if is_chief else (initial(), 0)
    should_stop = multihost_utils.reached_preemption_sync_point if jax.process_count() > 1 else lambda _: bool(signals)
    state, first = multihost_utils.broadcast_one_to_all((state, np.int32(first)))
    if jax.process_count() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: signals.append(number))
    state, first, saving, began = replicate(state), int(first), thread.submit(print, end=""), time.perf_counter()
    report("begin", step=first, steps=steps)
    stream = batches((images, labels), config.batch_size, config.seed, first, config.epochs)
    stream = stream if jax.default_backend() == "cpu" else prefetch_to_device(stream, 2)
    for step, batch in enumerate(stream, first + 1):
        state, mean_loss = train_step(state, *batch)
        epoch, is_last = -(-step // steps_per_epoch), should_stop(step) or step == steps
        if is_last or step % checkpoint_every == 0 or step % LOG_EVERY == 0:
            check_finite(loss := on_host(mean_loss), step, saving.result)
        if step % LOG_EVERY == 0:
            rate, began = LOG_EVERY * examples / (time.perf_counter() - began), time.perf_counter()
            values = {"loss": round(float(loss), 6), "examples_per_second": round(rate, 1)}
            report("progress", step=step, steps=steps, epoch=epoch, epochs=config.epochs, **values)
        if step % steps_per_epoch == 0:
            correct = on_host(sum(count_correct(state, *part) for part in batches(test, config.batch_size)))
            if is_chief:
                report("evaluation", step=step, epoch=epoch, held_out_accuracy=round(float(correct) / len(test[1]), 4))
        if is_last or step % checkpoint_every == 0:
            saving.result()  # of the save before, or its error
            saving = thread.submit(save, folder, on_host(state) if is_chief else None, training, step)
        if is_last and step < steps:
            saving.result()
            report("stopped", step=step, steps=steps)
            return
    saving.result()
    model = safetensors.numpy.save(flatten_dict(on_host({"params": state["params"], **state["others"]}), sep="/"))
    if is_chief:
        folder.write("model/parameters.safetensors", model)
        report("saved", model=f"{config.job_dir}/model")
    report("done", step=max(first, steps), steps=steps, parameters_sha256=hashlib.sha256(model).hexdigest())


def predict(config: argparse.Namespace) -> None:  # held-out digits, by the model in --job-dir
    _, (images, labels) = load_digits()
    types = {"F32": np.float32, "BF16": jnp.bfloat16, "F16": np.float16}
    arrays = safetensors.deserialize(Folder(config.job_dir).read("model/parameters.safetensors"))
    leaves = {name: np.frombuffer(a["data"], types[a["dtype"]]).reshape(a["shape"]) for name, a in arrays}
    variables, network = unflatten_dict(leaves, sep="/"), Network(jnp.dtype(config.dtype))
    logits_NK: Any = network.apply(variables, images[: config.predict], train=False)
    for number, prediction in enumerate(jnp.argmax(logits_NK, axis=-1)):
        print(f"held-out digit {number}: predicted {prediction}, is {labels[number]}", flush=True)


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--epochs", type=int, default=5)
    flags.add_argument("--batch-size", type=int, default=16, help="examples of one step on one device")
    flags.add_argument("--learning-rate", type=float, default=0.002)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the computation")
    flags.add_argument("--checkpoint-every", type=int, default=0, help="steps; 0: at the end of each epoch")
    flags.add_argument("--job-dir", default=os.environ.get("TRAINYARD_JOB_DIR") or "output")
    flags.add_argument("--predict", type=int, default=0, help="predict so many held-out digits in place of training")
    given = flags.parse_args()
    least = min(given.epochs, given.batch_size, 1 + given.seed, 1 + given.checkpoint_every, 1 + given.predict)
    if least < 1 or not 0 < given.learning_rate < float("inf"):
        flags.error("--epochs and --batch-size must be at least 1, --learning-rate above 0, and no number negative")
    if given.job_dir[:1] in ("", "~") or ":/" in given.job_dir.removeprefix("gs://"):
        flags.error("--job-dir must be a path without ~, or gs://BUCKET/DIRECTORY")
    try:
        join_cluster()
        predict(given) if given.predict else train(given)
        jax.distributed.shutdown()  # waits for all processes
    except Exception:  # noqa: BLE001
        end(1, traceback.format_exc())
    os._exit(0)  # at once, as a job ends when its chief does
