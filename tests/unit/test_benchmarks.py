"""What is compared is the same: the step that the benchmark has by hand, and the trainer template's."""

import jax
import numpy as np
import optax
import pytest

from benchmarks.training import handwritten
from trainer import models, resnet, state, steps, strategy, transformer

STEPS, BATCH = 3, 4
CASES = {
    "cnn": (models.Cnn(3, channels=(2, 3), hidden=5), (8, 8, 1), np.float32, optax.adam(0.002)),
    "resnet50": (
        resnet.ResNet(3, blocks=(1,), channels=2), (8, 8, 3), np.uint8, steps.OPTIMIZERS["momentum"](0.1)
    ),
    # Not Adam: a key's bias changes no attention, so its gradient is rounding errors, which Adam would scale up.
    "transformer": (transformer.Transformer(3, width=4, layers=1, heads=2), (5,), np.int32, optax.sgd(0.1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_handwritten_step_on_the_same_batches_leaves_the_templates_parameters(name: str) -> None:
    network, shape, dtype, optimizer = CASES[name]
    model = models.Model(name, shape, dtype, classes=3, network=network)
    one_device = strategy.OneDevice()
    templates = one_device.start(state.first_state(model, optimizer, seed=0))
    first = jax.tree.map(np.array, templates.params)
    by_hand = (first, model.statistics.split(np.array(templates.statistics)), optimizer.init(first))
    templates_step = steps.make_train_step(model, optimizer, one_device)
    step_by_hand = jax.jit(handwritten.make_step(network, optimizer))

    random = np.random.default_rng(0)
    for _ in range(STEPS):
        inputs = random.integers(3, size=(BATCH, *shape)).astype(dtype)
        labels = random.integers(3, size=(BATCH, *shape) if len(shape) == 1 else BATCH).astype(np.int32)
        templates, sums = templates_step(templates, inputs, labels, np.ones(BATCH, np.float32))
        by_hand, loss = step_by_hand(by_hand, inputs, labels)

    assert loss == pytest.approx(float(sums.loss / sums.examples), rel=1e-4)
    ends = templates.params, model.statistics.split(templates.statistics)
    jax.tree.map(
        lambda hand, end: np.testing.assert_allclose(hand, end, rtol=1e-3, atol=1e-5), by_hand[:2], ends
    )
    assert not np.allclose(model.params.join(first), model.params.join(templates.params))
