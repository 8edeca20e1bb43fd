"""The measured process of pmap.py: `python -m benchmarks.training.mapped_steps '{"model": ...}'`.

Prints {"pmap": [...], "shard_map": [...]}: seconds per step in each round.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.training.cases import Case
from trainer import distribute, state
from trainer.cluster import cluster_from_environment
from trainer.models.model import MODELS, Model
from trainer.steps import OPTIMIZERS, make_train_step
from trainer.strategy import AXIS, Mirrored, MultiWorkerMirrored, Strategy


class ShardMapped:
    """MultiWorkerMirrored with jit and shard_map over global arrays instead of pmap."""

    def __init__(self) -> None:
        self.local_replicas = jax.local_device_count()
        self.replicas_in_sync = jax.device_count()
        self._mesh = Mesh(np.asarray(jax.devices()), (AXIS,))

    def replicate(self, state: Any) -> Any:
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        return jax.tree.map(
            lambda leaf: jax.make_array_from_process_local_data(everywhere, np.asarray(leaf)), state
        )

    def mean(self, tree: Any) -> Any:
        flat, unravel = ravel_pytree(tree)
        return unravel(jax.lax.pmean(flat, AXIS))

    def compile(self, step: Callable[..., Any], donate_state: bool) -> Callable[..., Any]:
        def mapped(state: Any, *batch: Any) -> Any:
            specs = (PartitionSpec(), *(PartitionSpec(AXIS) for _ in batch))
            # Unchecked like pmap; the check would insert a sum over replicas into the gradient.
            return jax.shard_map(
                step, mesh=self._mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
            )(state, *batch)

        return jax.jit(mapped, donate_argnums=0 if donate_state else ())

    def put(self, array: Any) -> jax.Array:
        """This process's part [L, B, ...] -> a global array [replicas * B, ...]."""
        flat = array.reshape(-1, *array.shape[2:])
        over_replicas = NamedSharding(self._mesh, PartitionSpec(AXIS))
        array_on_devices: jax.Array = jax.make_array_from_process_local_data(over_replicas, flat)
        return array_on_devices

    def to_host(self, tree: Any) -> Any:
        return jax.tree.map(np.asarray, tree)


def main() -> None:
    settings = json.loads(sys.argv[1])
    rounds = settings.pop("rounds")
    case = Case.of(settings)
    cluster = cluster_from_environment()
    distribute.initialize(cluster)
    strategies: dict[str, Strategy] = {
        "pmap": MultiWorkerMirrored() if cluster.num_processes > 1 else Mirrored(),
        "shard_map": ShardMapped(),
    }
    runs = {name: _prepared(case, strategy) for name, strategy in strategies.items()}
    seconds: dict[str, list[float]] = {name: [] for name in strategies}
    for number in range(rounds):
        for name in strategies if number % 2 == 0 else reversed(strategies):
            seconds[name].append(runs[name](case.steps))
    if cluster.is_chief:
        print(json.dumps(seconds), flush=True)
    distribute.shutdown()
    os._exit(0)


def _prepared(case: Case, strategy: Strategy) -> Callable[[int], float]:
    """(steps) -> seconds per step; compiled and warmed up."""
    dataset = case.dataset()
    model = Model(case.model, dataset.input_shape, dataset.input_dtype, case.classes)
    optimizer = OPTIMIZERS[MODELS[case.model].optimizer](MODELS[case.model].learning_rate)
    training = strategy.replicate(state.initial_state(model, optimizer, seed=0))
    step = make_train_step(model, optimizer, strategy)
    inputs, labels = dataset.train.rows(np.arange(strategy.local_replicas * case.batch_size))
    leading = (strategy.local_replicas, case.batch_size)
    batch = (
        inputs.reshape(*leading, *inputs.shape[1:]),
        labels.reshape(*leading, *labels.shape[1:]),
        np.ones(leading, np.float32),
    )

    def run(steps: int) -> float:
        nonlocal training
        start = time.perf_counter()
        before: Any = ()
        for _ in range(steps):
            training, sums = step(training, *map(strategy.put, batch))
            jax.block_until_ready(before)  # as in the template: at most one step ahead
            before = sums
        jax.block_until_ready(training)
        return (time.perf_counter() - start) / steps

    run(2)
    return run


if __name__ == "__main__":
    main()
