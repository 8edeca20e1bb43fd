from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from support.lazy import jax, jnp, models, tiny


@pytest.mark.parametrize(
    ("name", "parameters", "statistics"),
    [("cnn", 151_306, 0), ("resnet50", 25_557_032, 53_120), ("transformer", 867_328, 0)],
)
def test_models_have_the_sizes_of_their_papers(name: str, parameters: int, statistics: int) -> None:
    kind = models.MODELS[name]
    dtype = jnp.int32 if kind.tokens else jnp.float32
    model = models.Model(models.built_in(name), kind.input_shape, dtype, kind.classes)
    assert (model.params.size, model.statistics.size) == (parameters, statistics)


def test_model_is_initialized_by_the_seed(model: models.Model) -> None:
    first, again, other = (np.asarray(model.initial(seed)[0]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_model_returns_a_logit_for_each_class(model: models.Model) -> None:
    params, statistics = model.initial(0)
    inputs, labels = tiny.examples(model, 3)
    logits, new_statistics = tiny.train(model, params, statistics, inputs)
    inferred = tiny.infer(model, params, statistics, inputs)
    assert logits.shape == inferred.shape == (*labels.shape, model.classes)
    assert logits.dtype == inferred.dtype == jnp.float32
    assert new_statistics.shape == statistics.shape


def test_resnet_updates_running_statistics() -> None:
    model = tiny.resnet()
    params, statistics = model.initial(0)
    _, changed = tiny.train(model, params, statistics, tiny.examples(model, 8)[0])
    assert (changed != statistics).any()


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


def test_flat_tree_ravels_and_unravels() -> None:
    tree = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": {"c": np.array(7, np.float32)}}
    vector = models.FlatTree(tree)
    assert vector.size == 7
    joined = vector.ravel(tree)
    assert joined.tolist() == vector.ravel_on_host(tree).tolist() == [7, 0, 1, 2, 3, 4, 5]
    jax.tree.map(np.testing.assert_array_equal, vector.unravel(joined), tree)
    assert models.FlatTree({}).ravel({}).shape == models.FlatTree({}).ravel_on_host({}).shape == (0,)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "loss",
            lambda outputs, labels: ((outputs - labels) ** 2).mean(),
            "loss has the shape [] for 3 examples",
        ),
        (
            "metrics",
            {"error": lambda outputs, labels: outputs[:, None] - labels},
            "error has the shape [3, 3] for",
        ),
    ],
)
def test_measure_refuses_what_is_not_one_value_for_each_example(field: str, value: Any, message: str) -> None:
    from trainer.models.task import TaskError

    task = models.built_in("cnn")
    measures: dict[str, Any] = {"loss": lambda outputs, labels: outputs - labels, "metrics": {}, field: value}
    model = models.Model(dataclasses.replace(task, **measures), (8, 8, 1), jnp.float32, 10)
    with pytest.raises(TaskError, match=re.escape(message)):
        model.measure(jnp.zeros(3), jnp.zeros(3), jnp.ones(3))


def test_measure_sums_with_weights_over_examples_and_means_over_tokens() -> None:
    logits = jnp.log(
        jnp.array([[[0.5, 0.5], [0.25, 0.75]], [[0.5, 0.5], [0.5, 0.5]], [[0.9, 0.1], [0.9, 0.1]]])
    )
    labels = jnp.array([[0, 1], [0, 0], [1, 1]])
    loss, correct, examples = tiny.transformer().measure(logits, labels, jnp.array([1.0, 1.0, 0.0]))
    expected = -(np.log(0.5) + np.log(0.75)) / 2 - np.log(0.5)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(correct) == 2.0
    assert float(examples) == 2.0
