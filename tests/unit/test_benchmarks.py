"""The training step of the benchmark's baseline equals the trainer template's."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
STEPS, BATCH = 3, 4


def case(name: str) -> tuple[Any, tuple[int, ...], type, Any]:
    """A small network of this kind, the shape and type of its inputs, and an optimizer."""
    import optax

    from trainyard_trainer.models import cnn, resnet, transformer
    from trainyard_trainer.training import optimizers

    if name == "cnn":
        return cnn.Cnn(3, channels=(2, 3), hidden=5), (8, 8, 1), np.float32, optax.adam(0.002)
    if name == "resnet50":
        momentum = optimizers.OPTIMIZERS["momentum"](0.1, 0.0)
        return resnet.ResNet(3, blocks=(1,), channels=2), (8, 8, 3), np.uint8, momentum
    # Not Adam: the gradient of a key's bias is only rounding errors, which Adam would amplify.
    return transformer.Transformer(3, width=4, layers=1, heads=2), (5,), np.int32, optax.sgd(0.1)


@pytest.mark.parametrize(
    "name", ["cnn", *(pytest.param(name, marks=pytest.mark.long) for name in ("resnet50", "transformer"))]
)
def test_baseline_step_on_the_same_batches_gives_the_templates_parameters(name: str) -> None:
    import jax

    from benchmarks.training import handwritten
    from trainyard_trainer.models import model as models
    from trainyard_trainer.training import state, steps, strategy

    network, shape, dtype, optimizer = case(name)
    model = models.Model(models.built_in(name, network=network), shape, np.dtype(dtype), classes=3)
    one_device = strategy.OneDevice()
    templates = one_device.replicate(state.initial_state(model, optimizer, seed=0))
    first = jax.tree.map(np.array, templates.params)
    by_hand = (first, model.statistics.unravel(np.array(templates.statistics)), optimizer.init(first))
    zeros = steps.no_sums(model)
    templates_step = steps.make_train_step(model, optimizer, one_device)
    step_by_hand = jax.jit(handwritten.make_step(network, optimizer))

    random = np.random.default_rng(0)
    for _ in range(STEPS):
        inputs: Any = random.integers(3, size=(BATCH, *shape)).astype(dtype)
        labels = random.integers(3, size=(BATCH, *shape) if len(shape) == 1 else BATCH).astype(np.int32)
        templates, sums = templates_step(templates, zeros, inputs, labels, np.ones(BATCH, np.float32))
        by_hand, loss = step_by_hand(by_hand, inputs, labels)

    assert loss == pytest.approx(float(sums[0] / sums[-1]), rel=1e-4)
    ends = templates.params, model.statistics.unravel(templates.statistics)
    jax.tree.map(lambda hand, end: np.testing.assert_allclose(hand, end, rtol=1e-3, atol=1e-5), by_hand[:2], ends)
    assert not np.allclose(model.params.ravel(first), model.params.ravel(templates.params))
