"""Files of parameters for --init-from: every type of number, and files that are none."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from support.lazy import export, jax, jnp, models, optax, state, tiny, weights
from trainyard_trainer.errors import CheckpointError

KERNEL = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def trees(shape: tuple[int, ...] = (3, 4)) -> dict[str, Any]:
    return {"params": {"Dense_0": {"kernel": jax.ShapeDtypeStruct(shape, np.float32)}}, "batch_stats": {}}


def content(array: Any) -> bytes:
    return safetensors.numpy.save({"params/Dense_0/kernel": np.asarray(array)})


def test_parameters_of_every_floating_type_are_read_as_float32(tmp_path: Path) -> None:
    import ml_dtypes

    precisions = {
        np.float64: 0, np.float32: 0, np.float16: 2**-11, ml_dtypes.bfloat16: 2**-8, ml_dtypes.float8_e4m3fn: 2**-4,
        ml_dtypes.float8_e5m2: 2**-3,
    }  # fmt: skip
    file = tmp_path / "some.safetensors"
    for dtype, precision in precisions.items():
        file.write_bytes(content(KERNEL.astype(dtype)))
        (read,) = weights.load(str(file), trees(), None).values()
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, KERNEL.astype(dtype).astype(np.float32))
        np.testing.assert_allclose(read, KERNEL, rtol=precision)


def test_model_and_checkpoint_with_bfloat16_parameters_are_written_and_read_back(tmp_path: Path) -> None:
    from flax import linen as nn

    from trainyard_trainer.output.saving import Saver

    class Half(nn.Module):
        @nn.compact
        def __call__(self, images: Any, train: bool) -> Any:
            return nn.Dense(10, param_dtype=jnp.bfloat16)(images.reshape(images.shape[0], -1))

    model = models.Model(models.built_in("cnn", network=Half()), (8, 8, 1), jnp.float32, 10)
    training = state.initial_state(model, optax.adam(0.1, mu_dtype=jnp.bfloat16), 0)
    function = export.export_function(model, 1, tuple("0123456789"))
    assert function is not None
    inputs, _ = tiny.examples(model, 3)
    shapes = {"params": model.params.shapes, "batch_stats": {}}
    with Saver(str(tmp_path), 0, 1) as saver:
        saver.prepare({"seed": 0})
        saver.save(state.START._asdict(), lambda: state.to_arrays(training), lambda: None)
        saver.wait()
        of_checkpoint = weights.load(str(tmp_path), shapes, None)
        saver.save_model(export.model_files(function, model, training.params, training.statistics, {}))
    expected = {f"params/Dense_0/{name}": np.asarray(array) for name, array in training.params["Dense_0"].items()}
    for url in (str(tmp_path), str(tmp_path / "model"), str(next((tmp_path / "model").glob("*.safetensors")))):
        for read in (weights.load(url, shapes, None), of_checkpoint):
            assert read.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(read[name], array.astype(np.float32))
    (tmp_path / "half.safetensors").write_bytes(
        safetensors.numpy.save({name: array.astype(jnp.bfloat16) for name, array in expected.items()})
    )
    assert weights.load(str(tmp_path / "half.safetensors"), shapes, None).keys() == expected.keys()
    answers = export.load(str(tmp_path / "model"))(inputs)["logits"]
    np.testing.assert_allclose(answers, model.infer(training.params, {}, inputs), atol=1e-5)


def test_files_that_are_no_parameters_are_refused_with_what_they_are(tmp_path: Path) -> None:
    whole = content(KERNEL)
    header = json.dumps({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    contents = {
        "empty.safetensors is empty. Allowed are a safetensors file": b"",
        "garbage.safetensors is no safetensors file": b"garbage, and more of it",
        "short.safetensors is no safetensors file": b"\x01\x02",
        f"cut.safetensors is cut short: it has {len(whole) - 5} of {len(whole)} bytes": whole[:-5],
        "header.safetensors is cut short: it ends after 30 bytes, within its header": whole[:30],
        "nonsense.safetensors is no safetensors file: its header": (9).to_bytes(8, "little") + b"{nonsense",
        "longer.safetensors is no safetensors file: ": whole + b"more",
        "four.safetensors has a as F4; allowed are BOOL, BF16, ": len(header).to_bytes(8, "little") + header + b"\x00",
        "pickle.bin is a pickle or a zip archive, as torch.save writes them": pickle.dumps({"weight": [1.0]}),
        "torch.pt is a pickle or a zip archive": b"PK\x03\x04 and so on",
        "pointer.safetensors is a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a",
        "whole.safetensors has Dense_0/kernel as int32; allowed are floating": content(KERNEL.astype(np.int32)),
        "other.safetensors does not have Dense_0/kernel [3, 4] (there [4, 3])": content(KERNEL.T.copy()),
    }
    urls = {}
    for message, data in contents.items():
        file = tmp_path / message.partition(" ")[0]
        file.write_bytes(data)
        urls[message] = str(file)
    for name, message in {
        "nothing": "is not there, or has no parameters. Allowed are",
        "pickles": "has pytorch_model.bin alone, which is not read. Save the model as safetensors",
        "lost": "model-00001-of-00002.safetensors is missing",
        "index": "model.safetensors.index.json is damaged",
        "about": "model.json is damaged",
    }.items():
        (tmp_path / name).mkdir()
        urls[message] = str(tmp_path / name)
    (tmp_path / "pickles/pytorch_model.bin").write_bytes(b"PK\x03\x04")
    lost = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "lost/model.safetensors.index.json").write_text(json.dumps(lost))
    (tmp_path / "index/model.safetensors.index.json").write_text("{")
    (tmp_path / "about/model").mkdir()
    (tmp_path / "about/model/model.json").write_text("[]")
    urls["nowhere.safetensors is not there"] = str(tmp_path / "nowhere.safetensors")
    wrong = []
    for message, url in urls.items():
        with pytest.raises(CheckpointError) as refused:
            weights.load(url, trees(), None)
        if message not in str(refused.value):
            wrong.append((message, str(refused.value)))
    assert not wrong
