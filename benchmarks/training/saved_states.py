"""Seconds for which saving blocks training, with the template and with Orbax, as JSON. Argument: rounds."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint  # type: ignore[import-untyped]

from trainer import state, train
from trainer.models.resnet import ResNet
from trainer.output.saving import Saver
from trainer.strategy import make_strategy

STATISTICS = 53_120
STEPS = 3  # between two saves


def main() -> None:
    rounds = int(sys.argv[1])
    strategy = make_strategy("auto")
    network, images = ResNet(1000), jnp.zeros((1, 32, 32, 3))
    variables = jax.eval_shape(lambda: network.init(jax.random.key(0), images, train=False))
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), variables["params"])
    momentum = optax.sgd(0.1, momentum=0.9)
    training = strategy.replicate(
        state.State(params, np.zeros(STATISTICS, np.float32), momentum.init(params))
    )
    step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0.5, tree), donate_argnums=0)

    def steps() -> None:
        nonlocal training
        for _ in range(STEPS):
            training = jax.block_until_ready(step(training))

    def measured(save: Callable[[int], None], wait: Callable[[], Any]) -> dict[str, list[float]]:
        blocked, written = [], []
        for number in range(rounds + 1):  # the first one warms up
            steps()
            start = time.perf_counter()
            save(number)
            blocked.append(time.perf_counter() - start)
            steps()
            wait()
            written.append(time.perf_counter() - start)
        return {"blocked": blocked[1:], "written": written[1:]}

    def fetched() -> Callable[[], Any]:
        on_host = train._snapshot(strategy, training)
        return lambda: state.to_arrays(on_host())

    with tempfile.TemporaryDirectory() as folder, Saver(folder, 0, 2) as saver:
        saver.prepare({})
        ours = measured(
            lambda number: saver.save({"steps": number, "epochs": 0, "examples": 0}, fetched(), lambda: None),
            saver.wait,
        )
    orbaxs = orbax.checkpoint.AsyncCheckpointer(orbax.checkpoint.StandardCheckpointHandler())
    with tempfile.TemporaryDirectory() as folder:
        theirs = measured(
            lambda number: orbaxs.save(
                f"{folder}/{number}", args=orbax.checkpoint.args.StandardSave(training._asdict())
            ),
            orbaxs.wait_until_finished,
        )
    megabytes = sum(leaf.nbytes for leaf in jax.tree.leaves(training)) / 1e6
    print(json.dumps({"template": ours, "orbax": theirs, "megabytes": megabytes}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
