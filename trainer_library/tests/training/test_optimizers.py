"""Optimizers with a PRNG key in their state, and those that need the loss: saved, resumed, in each layout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PATHS = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

# Each is trained whole, and again with an interruption between two checkpoints, on two devices.
PROGRAM = """
import dataclasses, json, sys
sys.path[:0] = sys.argv[1:3]
import jax, jax.numpy as jnp, numpy as np, optax
from own import regression
from trainyard_trainer import task as program
from trainyard_trainer.arguments import parse_arguments
from trainyard_trainer.output.saving import Saver
from trainyard_trainer.training import train

def shaken(rate):
    "An own transformation with a key of the old kind."
    def update(updates, state, params=None):
        key, used = jax.random.split(state)
        return jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(used, leaf.shape), updates), key
    return optax.chain(optax.GradientTransformation(lambda params: jax.random.PRNGKey(3), update), optax.sgd(rate))

def noisy(rate):
    return optax.noisy_sgd(rate, eta=0.1, key=jax.random.key(3))

def plateau(rate):
    return optax.chain(optax.sgd(rate), optax.contrib.reduce_on_plateau(0.5, 1, atol=1e9, accumulation_size=7))

cases = {
    "typed key": (noisy,),
    "typed key, pmap": (noisy, "--parallel", "pmap"),
    "another generator, fsdp": (
        lambda rate: optax.noisy_sgd(rate, key=jax.random.key(3, impl="rbg")), "--parallel", "fsdp"
    ),
    "old key": (shaken, "--freeze", "bias"),
    "plateau": (plateau, "--ema", "0.9"),
    "polyak": (lambda rate: optax.polyak_sgd(scaling=rate),),
}

class Interrupted(Exception):
    pass

def interrupted(*arguments):
    for number, batch in enumerate(read(*arguments)):
        if number == 13:
            raise Interrupted
        yield batch

read, ends = train.read, {}
for case, (optimizer, *flags) in cases.items():
    task, found = dataclasses.replace(regression.task, optimizer=optimizer), []
    for job, reads in (("whole", [read]), ("interrupted", [interrupted, read])):
        job_dir = f"{sys.argv[3]}/{case}/{job}"
        words = ["--job-dir", job_dir, "--steps", "20", "--checkpoint-every", "5", "--batch-size", "16", *flags]
        for train.read in reads:
            try:
                program.run(parse_arguments(words), task)
            except Interrupted:
                assert 0 < Saver(job_dir, 0, 3).newest()[0].step < 20
        entry, arrays = Saver(job_dir, 0, 3).newest()
        assert entry.step == 20
        found.append({name: (str(array.dtype), array.ravel().tolist()) for name, array in arrays.items()})
    ends[case] = found
print(json.dumps(ends))
"""


def test_optimizers_with_a_key_or_the_loss_resume_to_the_same_bits_in_each_layout(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *PATHS, str(tmp_path)],
        env={
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PATH": "",
            "JAX_COMPILATION_CACHE_DIR": f"{tmp_path}/compiled", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        },
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout.splitlines()[-1])
    assert [case for case, (whole, resumed) in ends.items() if whole != resumed] == []

    def values(case: str, part: str) -> list[list[float]]:
        return [value for name, (_, value) in sorted(ends[case][0].items()) if part in name]

    (key,) = values("typed key", "rng_key")
    assert key != [0, 3]  # it is another one after each step
    assert [key] == values("typed key, pmap", "rng_key")
    assert [len(words) for words in values("another generator, fsdp", "rng_key")] == [4]
    assert {kind for name, (kind, _) in ends["typed key"][0].items() if "rng_key" in name} == {"uint32"}
    assert values("plateau", ".scale") == [[0.5]]  # the loss reached it
