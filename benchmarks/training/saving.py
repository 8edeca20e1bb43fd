"""Seconds that a training waits for a save, of one every four steps: `python -m benchmarks.training.saving WHO MB`.

WHO is `library`, `template`, or `orbax`, whose CheckpointManager saves asynchronously too. The state is MB of random
float32 numbers, which hardly compress, as trained ones. It prints the seconds of a save.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ARRAYS = 12
SAVES, EVERY = 6, 4
PROBE = 512  # a matrix whose products are the computation of a step

Saving = tuple[Callable[[int, Any], None], Callable[[], None]]
"""A function that saves (step, state), and one that waits for all saves."""


def main() -> None:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import jax_utils

    from trainyard_trainer.training.state import State

    who, elements = sys.argv[1], int(sys.argv[2]) * 10**6 // 4 // ARRAYS
    keys = jax.random.split(jax.random.key(0), ARRAYS)
    params = {f"layer_{number}": jax.random.normal(key, (elements,)) for number, key in enumerate(keys)}
    matrix = jnp.ones((PROBE, PROBE))

    @jax.jit
    def busy(matrix: jax.Array) -> Any:
        return jax.lax.fori_loop(0, 40, lambda _, product: jnp.tanh(product @ matrix), matrix)

    def update(state: State) -> State:
        return state._replace(params=jax.tree.map(lambda leaf: leaf * 0.9999, state.params), step=state.step + 1)

    state, step = State(params, jnp.zeros(0), optax.EmptyState(), jnp.int32(0)), jax.jit(update, donate_argnums=0)
    if who == "template":
        state, step = jax_utils.replicate(state), jax.pmap(update, donate_argnums=0)
    waited = 0.0
    with tempfile.TemporaryDirectory() as folder:
        save, close = {"library": _library, "template": _template, "orbax": _orbax}[who](folder)
        for number in range(1, SAVES * EVERY + 1):
            state = step(state)
            jax.block_until_ready((state, busy(matrix)))
            if number % EVERY == 0:
                began = time.perf_counter()
                save(number, state)
                waited += time.perf_counter() - began
        close()
    print(waited / SAVES, flush=True)


def _library(folder: str) -> Saving:
    from trainyard_trainer.output.saving import Saver
    from trainyard_trainer.training import state as states
    from trainyard_trainer.training.state import TrainingPosition
    from trainyard_trainer.training.strategy import OneDevice
    from trainyard_trainer.training.train import snapshot

    strategy, saver = OneDevice(), Saver(folder, 0, 2)
    saver.prepare({"seed": 0})

    def save(number: int, state: Any) -> None:
        fetch = snapshot(strategy, state, strategy.to_host)
        position = TrainingPosition(steps=number)._asdict()
        saver.save(position, lambda: states.to_arrays(fetch()), lambda: None)

    return save, saver.wait


def _template(folder: str) -> Saving:
    from concurrent.futures import Future, ThreadPoolExecutor

    from trainer import task

    place, thread, saving = task.Folder(folder), ThreadPoolExecutor(1), list[Future[None]]()

    def wait() -> None:
        while saving:
            saving.pop().result()

    def save(number: int, state: Any) -> None:  # as its `train` does
        wait()
        of_template = {"params": state.params, "others": {}, "optimizer": (), "step": state.step}
        saving.append(thread.submit(task.save, place, task.on_host(of_template), {"seed": 0}, number))

    return save, wait


def _orbax(folder: str) -> Saving:
    import orbax.checkpoint

    options = orbax.checkpoint.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=True)
    manager = orbax.checkpoint.CheckpointManager(Path(folder), options=options)

    def save(number: int, state: Any) -> None:
        manager.save(number, args=orbax.checkpoint.args.StandardSave({"params": state.params, "step": state.step}))

    return save, manager.close


if __name__ == "__main__":
    main()
