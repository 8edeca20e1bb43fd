"""Optimizers by parts of the parameters, as parameter servers apply them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.lazy import divided, jax, models, optax, optimizers, tiny

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "masked weight decay": lambda: optax.adamw(0.1, weight_decay=0.5, mask=optimizers.matrices),
    "momentum": lambda: optimizers.OPTIMIZERS["momentum"](0.1, 0.5),
    "norms of each parameter": lambda: optax.lamb(0.1, weight_decay=0.1),
    "names": lambda: optax.multi_transform(
        {"adam": optax.adam(0.1), "sgd": optax.sgd(0.1)},
        lambda params: {name: "adam" if "Conv" in name else "sgd" for name in params},
    ),
    "several gradients": lambda: optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(),
    "half precision": lambda: optax.adam(0.1, mu_dtype="bfloat16"),
}


@pytest.mark.parametrize("servers", [2, 9])  # nine are more than there are parameters
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_by_parts_does_what_it_does_as_a_whole(name: str, servers: int) -> None:
    optimizer, model = OPTIMIZERS[name](), tiny.cnn()
    flat, values = model.params, np.asarray(model.initial(0)[0])
    cuts = flat.cut(servers)
    random = np.random.default_rng(0)
    gradients = [random.normal(size=flat.size).astype(np.float32) for _ in range(4)]
    params, state = flat.unravel(values), jax.jit(optimizer.init)(flat.unravel(values))
    whole = jax.jit(optimizer.update)
    for gradient in gradients[:2]:
        updates, state = whole(flat.unravel(gradient), state, params)
        params = optax.apply_updates(params, updates)

    conversion = divided.DividedState(optimizer, flat, servers)
    vector, parts = np.asarray(flat.ravel(params)), []
    for leaves, listed in zip(cuts, conversion.divide(state), strict=True):  # as of a checkpoint
        own = divided.on_part(optimizer, flat, leaves)
        here = vector[flat.elements(leaves)]
        own_state = jax.tree.unflatten(jax.tree.structure(jax.eval_shape(own.init, here)), listed)
        for gradient in gradients[2:]:
            change, own_state = jax.jit(own.update)(gradient[flat.elements(leaves)], own_state, here)
            here = np.asarray(optax.apply_updates(here, change))
        parts.append((here, [np.asarray(leaf) for leaf in jax.tree.leaves(own_state)]))
    for gradient in gradients[2:]:
        updates, state = whole(flat.unravel(gradient), state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(np.concatenate([part for part, _ in parts]), flat.ravel(params), rtol=1e-5, atol=1e-6)
    jax.tree.map(
        lambda joined, leaf: np.testing.assert_allclose(
            np.asarray(joined, np.float32), np.asarray(leaf, np.float32), rtol=1e-2, atol=1e-6
        ),
        conversion.join([listed for _, listed in parts]), state,
    )  # fmt: skip


OF_ALL_PARAMETERS: dict[str, Callable[[], Any]] = {
    "clip": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    "clip before Adam": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)),
    "clip small updates": lambda: optax.chain(optax.adam(1e-3), optax.clip_by_global_norm(0.1)),
    "clip some of them": lambda: optax.MultiSteps(OF_ALL_PARAMETERS["clip"](), 4),
    "ZeroDivisionError": lambda: importlib.import_module("optax.contrib").muon(0.1),  # of empty matrices
}


def test_optimizer_that_needs_all_parameters_at_once_is_refused_unless_one_server_has_them() -> None:
    flat = tiny.cnn().params
    for name, make in OF_ALL_PARAMETERS.items():
        divided.DividedState(make(), flat, 1)
        cause = name if "Error" in name else "as to clip"
        message = rf"needs all parameters at once \({cause}.* each of 2 parameter servers"
        with pytest.raises(models.ModelError, match=message):
            divided.DividedState(make(), flat, 2)
