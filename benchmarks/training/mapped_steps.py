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

from benchmarks.training.cases import Case
from trainer import distribute, state
from trainer.cluster import cluster_from_environment
from trainer.models.model import MODELS, Model, built_in
from trainer.steps import OPTIMIZERS, make_train_step, no_sums
from trainer.strategy import Mirrored, Pmapped, Strategy


def main() -> None:
    settings = json.loads(sys.argv[1])
    rounds = settings.pop("rounds")
    case = Case.of(settings)
    cluster = cluster_from_environment()
    distribute.initialize(cluster)
    strategies: dict[str, Strategy] = {"pmap": Pmapped(), "shard_map": Mirrored()}
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
    model = Model(built_in(case.model), dataset.input_shape, dataset.input_dtype, case.classes)
    optimizer = OPTIMIZERS[MODELS[case.model].optimizer](MODELS[case.model].learning_rate, 0.0)
    training = strategy.replicate(state.initial_state(model, optimizer, seed=0))
    step = make_train_step(model, optimizer, strategy)
    zeros = strategy.replicate(no_sums(model))
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
            training, sums = step(training, zeros, *map(strategy.put, batch))
            jax.block_until_ready(before)  # as in the template: at most one step ahead
            before = sums
        jax.block_until_ready(training)
        return (time.perf_counter() - start) / steps

    run(2)
    return run


if __name__ == "__main__":
    main()
