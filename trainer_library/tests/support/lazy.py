"""Modules that import JAX, each imported when a test first uses an attribute of it.

Every worker of pytest-xdist collects every test, and `from support.lazy import jax, state` keeps that cheap. Use the
attributes in functions only, and delay annotations (`from __future__ import annotations`).
"""

import importlib
from typing import TYPE_CHECKING

__all__ = [
    "experiment", "export", "jax", "jnp", "lora", "models", "optax", "optimizers", "predict", "report", "state",
    "steps", "strategy", "tasks", "tiny", "weights",
]  # fmt: skip

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import optax

    from support import tiny
    from trainyard_trainer import predict
    from trainyard_trainer.models import lora
    from trainyard_trainer.models import model as models
    from trainyard_trainer.models import task as tasks
    from trainyard_trainer.output import export, report
    from trainyard_trainer.training import experiment, optimizers, state, steps, strategy, weights
else:

    class LazyModule:
        """A module's public attributes, to be read. A patch names the module: monkeypatch.setattr("a.b", ...)."""

        __slots__ = ("_name",)

        def __init__(self, name):
            self._name = name

        def __getattr__(self, attribute):
            if attribute.startswith("_"):  # pytest's own questions about each global of a test module
                raise AttributeError(attribute)
            return getattr(importlib.import_module(self._name), attribute)

    jax = LazyModule("jax")
    jnp = LazyModule("jax.numpy")
    optax = LazyModule("optax")
    tiny = LazyModule("support.tiny")
    experiment = LazyModule("trainyard_trainer.training.experiment")
    predict = LazyModule("trainyard_trainer.predict")
    optimizers = LazyModule("trainyard_trainer.training.optimizers")
    state = LazyModule("trainyard_trainer.training.state")
    steps = LazyModule("trainyard_trainer.training.steps")
    strategy = LazyModule("trainyard_trainer.training.strategy")
    lora = LazyModule("trainyard_trainer.models.lora")
    models = LazyModule("trainyard_trainer.models.model")
    tasks = LazyModule("trainyard_trainer.models.task")
    export = LazyModule("trainyard_trainer.output.export")
    report = LazyModule("trainyard_trainer.output.report")
    weights = LazyModule("trainyard_trainer.training.weights")
