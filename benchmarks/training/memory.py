"""Memory of a device, as XLA plans it, for GPT-2 of 124 million parameters: `python -m benchmarks.training.memory`.

It prints {"mirrored": [library, by hand], "fsdp-4", "fsdp-8", "lora": [library with --lora, without]} in MiB, for eight
CPU devices and two sequences each.
"""

import json
import os
from typing import Any

DEVICES, LENGTH = 8, 256
RANK = 8
SIZES = {"mirrored": 1, "fsdp-4": 4, "fsdp-8": 8}  # devices that share a state


def main() -> None:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    from benchmarks.training.sharded_by_hand import compiled_step

    planned = {}
    for name, fsdp in SIZES.items():
        compiled = _of_library(fsdp), compiled_step(fsdp, 2 * DEVICES, LENGTH)
        planned[name] = [_mebibytes(step.memory_analysis()) for step in compiled]
    planned["lora"] = [_mebibytes(_of_library(1, RANK).memory_analysis()), planned["mirrored"][0]]
    print(json.dumps(planned), flush=True)


def _of_library(fsdp: int, rank: int = 0) -> Any:
    """`rank`: of --lora; 0: all parameters are trained."""
    import dataclasses

    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import NamedSharding, PartitionSpec

    from trainyard_trainer.models.lora import with_lora
    from trainyard_trainer.models.model import Model, built_in
    from trainyard_trainer.training import optimizers, state, steps, strategy

    task, optimizer = built_in("gpt2"), optax.adam(0.001)
    model = Model(task, (LENGTH,), jnp.int32, 50257)
    if rank:
        task = dataclasses.replace(task, network=with_lora(model.network, rank, "kernel$"))
        model, optimizer = Model(task, (LENGTH,), jnp.int32, 50257), optimizers.only(optimizer, _trains)
    placed: Any = strategy.Mirrored() if fsdp == 1 else strategy.Sharded([("fsdp", fsdp)])
    shapes = state.state_shapes(model, optimizer)
    mesh, batch = placed._mesh, PartitionSpec(strategy.AXIS if fsdp == 1 else ("data", "fsdp"))
    whole, by_batch = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, batch)
    layouts = jax.tree.map(lambda _: whole, shapes) if fsdp == 1 else placed.shardings(shapes)

    def of(shape: tuple[int, ...], kind: Any, layout: Any = by_batch) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, kind, sharding=layout)

    given = jax.tree.map(lambda leaf, layout: of(leaf.shape, leaf.dtype, layout), shapes, layouts)
    tokens, weights = of((2 * DEVICES, LENGTH), jnp.int32), of((2 * DEVICES,), jnp.float32)
    trains = _trains if rank else lambda _name: True
    step: Any = steps.make_train_step(model, optimizer, placed, trains=trains)
    return step.lower(given, of((3,), jnp.float32, whole), tokens, tokens, weights).compile()


def _trains(name: str) -> bool:
    return name.startswith("lora/")


def _mebibytes(plan: Any) -> float:
    """The arguments, of which the state is reused for the result, and what else lives during a step."""
    planned: int = plan.argument_size_in_bytes + plan.temp_size_in_bytes
    return round(planned / 2**20, 1)


if __name__ == "__main__":
    main()
