from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from support.lazy import jnp, models, tiny


@pytest.mark.parametrize(
    ("name", "parameters", "statistics"),
    [("cnn", 151_306, 0), ("resnet50", 25_557_032, 53_120), ("transformer", 867_328, 0)],
)
def test_models_have_the_sizes_of_their_papers(name: str, parameters: int, statistics: int) -> None:
    kind = models.MODELS[name]
    dtype = jnp.int32 if kind.tokens else jnp.float32
    model = models.Model(models.built_in(name), kind.input_shape, dtype, kind.classes)
    assert (model.params.size, model.statistics.size) == (parameters, statistics)


def test_transformer_is_causal() -> None:
    model = tiny.transformer()
    params, statistics = model.initial(0)
    tokens = tiny.examples(model, 1)[0]
    other = tokens.copy()
    other[0, 4:] = (tokens[0, 4:] + 1) % model.classes
    answers = [tiny.infer(model, params, statistics, inputs) for inputs in (tokens, other)]
    np.testing.assert_array_equal(answers[0][0, :4], answers[1][0, :4])
    assert (answers[0][0, 4:] != answers[1][0, 4:]).any()


def test_bfloat16_changes_the_computation_and_not_the_parameters() -> None:
    model, exact = tiny.cnn(dtype=jnp.bfloat16), tiny.cnn()
    params, statistics = model.initial(0)
    np.testing.assert_array_equal(params, exact.initial(0)[0])
    inputs, _ = tiny.examples(model, 3)
    logits, _ = tiny.train(model, params, statistics, inputs)
    expected, _ = tiny.train(exact, params, statistics, inputs)
    assert params.dtype == logits.dtype == jnp.float32
    assert (logits != expected).any()
    np.testing.assert_allclose(logits, expected, atol=0.02)


def test_uint8_images_are_scaled() -> None:
    model = tiny.resnet()
    params, statistics = model.initial(0)
    inputs, _ = tiny.examples(model, 2)
    as_floats = models.Model(model.task, (16, 16, 3), jnp.float32, 4)
    expected = tiny.infer(as_floats, params, statistics, inputs.astype(np.float32) / 255)
    np.testing.assert_allclose(tiny.infer(model, params, statistics, inputs), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("cnn", (8, 8), np.float32), ("transformer", (8, 8, 1), np.float32), ("resnet50", (6,), np.int32),
     ("transformer", (6,), np.float32)],
)  # fmt: skip
def test_model_refuses_data_of_another_shape_or_type(name: str, shape: tuple[int, ...], dtype: type) -> None:
    with pytest.raises(models.ModelError, match=f"The model {name} takes .*; the data has"):
        models.Model(models.built_in(name), shape, dtype, 10)


def test_measure_refuses_what_is_not_one_value_for_each_example() -> None:
    from trainyard_trainer.errors import TaskError

    usual = dataclasses.replace(models.built_in("cnn"), loss=lambda outputs, labels: outputs - labels)
    refused: dict[str, dict[str, Any]] = {
        "loss has the shape [] for 3 examples": {"loss": lambda outputs, labels: (outputs - labels).mean()},
        "error has the shape [3, 3] for": {"metrics": {"error": lambda x, labels: x[:, None] - labels}},
    }
    for message, measures in refused.items():
        task = dataclasses.replace(usual, **({"metrics": {}} | measures))
        model = models.Model(task, (8, 8, 1), jnp.float32, 10)
        with pytest.raises(TaskError, match=re.escape(message)):
            model.measure(jnp.zeros(3), jnp.zeros(3), jnp.ones(3))


def test_measure_sums_with_weights_over_examples_and_means_over_tokens() -> None:
    logits = jnp.log(jnp.array([[[0.5, 0.5], [0.25, 0.75]], [[0.5, 0.5], [0.5, 0.5]], [[0.9, 0.1], [0.9, 0.1]]]))
    labels = jnp.array([[0, 1], [0, 0], [1, 1]])
    loss, correct, examples = tiny.transformer().measure(logits, labels, jnp.array([1.0, 1.0, 0.0]))
    expected = -(np.log(0.5) + np.log(0.75)) / 2 - np.log(0.5)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(correct) == 2.0
    assert float(examples) == 2.0
