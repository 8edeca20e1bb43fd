"""The copy of the state that is saved while training continues, with each layout."""

from __future__ import annotations

import numpy as np
import pytest

from support.lazy import jax, optax, state, steps, strategy, tiny


@pytest.mark.parametrize(
    ("layout", "backend"),  # the backend decides how it is copied
    [("OneDevice", "cpu"), ("OneDevice", "gpu"), ("Mirrored", "cpu"), ("Sharded", "gpu"), ("Pmapped", "gpu")],
)
def test_later_steps_do_not_change_a_snapshot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, layout: str, backend: str
) -> None:
    from trainyard_trainer.training import train

    mesh = [[("fsdp", 1)]] if layout == "Sharded" else []
    model, optimizer, placed = tiny.cnn(), optax.adam(0.1), getattr(strategy, layout)(*mesh)
    inputs, labels = tiny.examples(model, 4)
    batch = [placed.put(part[np.newaxis]) for part in (inputs, labels, np.ones(4, np.float32))]
    step, sums = steps.make_train_step(model, optimizer, placed), placed.replicate(steps.no_sums(model))
    training, _ = step(placed.replicate(state.initial_state(model, optimizer, seed=0)), sums, *batch)
    expected = jax.tree.map(np.copy, placed.to_host(training))
    with monkeypatch.context() as patched:
        patched.setattr("jax.default_backend", lambda: backend)
        fetch = train.snapshot(placed, training, placed.to_host)
        with jax.log_compiles():
            train.snapshot(placed, training, placed.to_host)
    for _ in range(2):
        training, _ = step(training, placed.replicate(steps.no_sums(model)), *batch)
    jax.tree.map(np.testing.assert_array_equal, fetch(), expected)
    assert "Compiling" not in caplog.text  # at each save
    assert state.parameters_sha256(placed.to_host(training).params) != state.parameters_sha256(expected.params)
