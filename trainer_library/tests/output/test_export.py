from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.lazy import export, jnp, models, optax, predict, state, tiny
from trainyard_trainer.output.saving import Saver
from trainyard_trainer.storage import open_folder

TEMPLATE = Path(__file__).resolve().parents[2]


def class_names(model: models.Model) -> tuple[str, ...]:
    return tuple(f"{model.name} {n}" for n in range(model.classes))


def saved(model: models.Model, job_dir: str) -> tuple[state.State, str]:
    """A model in job_dir, and its state."""
    drawn = state.initial_state(model, optax.sgd(0.1), seed=5)
    function = export.export_function(model, 4, class_names(model))
    assert function is not None
    files = export.model_files(function, model, drawn.params, drawn.statistics, {"steps": 12})
    return drawn, Saver(job_dir, 0, 3).save_model(files)


@pytest.fixture
def cnn_dir(tmp_path: Path) -> str:
    return saved(tiny.cnn(), str(tmp_path))[1]


def test_loaded_model_predicts_like_the_saved_one(model: models.Model, job_dir: str) -> None:
    drawn, where = saved(model, job_dir)
    loaded = export.load(where)
    for count in (1, 5):
        inputs, _ = tiny.examples(model, count)
        expected = tiny.infer(model, model.params.ravel(drawn.params), drawn.statistics, inputs)
        outputs = loaded(inputs)
        np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.sum(outputs["probabilities"], axis=-1), 1, rtol=1e-5)


def test_saved_model_describes_inputs_and_outputs_but_no_cluster(cnn_dir: str) -> None:
    about = json.loads((Path(cnn_dir) / export.METADATA).read_text())
    assert about["input"] == {"shape": ["B", 8, 8, 1], "dtype": "float32", "range": [0, 1]}
    assert about["outputs"]["logits"] == {"shape": ["B", 10], "dtype": "float32"}
    assert about["labels"] == list(class_names(tiny.cnn()))
    assert about["steps"] == 12
    assert not [key for key in about if "replica" in key or "cluster" in key or "process" in key]
    assert sorted(path.name for path in Path(cnn_dir).iterdir()) == sorted(
        [export.METADATA, about["function"], about["parameters"]]
    )


# The lines of export.py's docstring, as a program that has nothing of this package.
JAX_ONLY = """
import json, pathlib, sys
import jax, jax.export, numpy as np, safetensors.numpy
folder = pathlib.Path(sys.argv[1])
about = json.loads((folder / "model.json").read_text())
function = jax.export.deserialize(bytearray((folder / about["function"]).read_bytes()))
parameters = safetensors.numpy.load_file(folder / about["parameters"])
outputs = function.call(parameters, np.zeros((2, 8, 8, 1), np.float32))
assert not [name for name in sys.modules if name.partition(".")[0] in ("trainer", "flax", "optax")]
print(np.shape(outputs["probabilities"]), sorted(parameters)[0])
"""


def test_process_without_this_package_loads_and_calls_the_model(cnn_dir: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JAX_ONLY, cnn_dir], cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout == "(2, 10) params/Conv_0/bias\n", done.stderr


def fixed(logits: Any, make: Callable[[int], Any]) -> Any:
    """The logits, by a network that needs the number of examples."""
    return logits + 0 * make(int(logits.shape[0])).sum()


def on_this_platform_alone(logits: Any) -> Any:
    """The logits, by a network with an operation that JAX has for CPU alone."""
    return logits + 0 * jnp.linalg.eigvals(jnp.eye(2)).real.sum()


UNUSUAL: dict[str, Callable[[Any], Any]] = {
    "a number of examples": lambda logits: fixed(logits, np.zeros),
    "this platform": on_this_platform_alone,
    "both": lambda logits: on_this_platform_alone(fixed(logits, np.zeros)),
}


def test_network_that_needs_a_concrete_batch_or_platform_is_exported_for_that_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    usual = tiny.cnn()
    images, _ = tiny.examples(usual, 10)  # no multiple of 4
    logits = export.load(saved(usual, str(tmp_path / "usual"))[1])(images)["logits"]
    everywhere = ["cpu", "cuda", "tpu"]
    needs: dict[str, tuple[Any, list[str], str]] = {
        "a number of examples": (4, everywhere, "for batches of 4 on cpu, cuda, tpu: the network cannot"),
        "this platform": ("B", ["cpu"], "for batches of any size on cpu: the network cannot"),
        "both": (4, ["cpu"], "for batches of 4 on cpu: the network cannot"),
    }
    for name, (batch, platforms, warning) in needs.items():

        def exported(outputs: Any, unusual: Callable[[Any], Any] = UNUSUAL[name]) -> Any:
            return {"logits": unusual(outputs)}

        task = dataclasses.replace(usual.task, exported=exported)
        model = models.Model(task, usual.input_shape, usual.input_dtype, usual.classes)
        loaded = export.load(saved(model, str(tmp_path / name))[1])
        assert warning in caplog.text
        assert (loaded.about["input"]["shape"][0], loaded.about["platforms"]) == (batch, platforms)
        np.testing.assert_allclose(loaded(images)["logits"], logits, rtol=1e-5, atol=1e-6)


def test_labels_that_json_does_not_have_are_named_before_the_training(caplog: pytest.LogCaptureFixture) -> None:
    assert export.export_function(tiny.cnn(), 4, (np.int64(1),)) is None  # type: ignore[arg-type]
    assert "int64 is not JSON serializable" in caplog.text


def test_load_of_a_model_with_missing_or_damaged_files_is_refused(cnn_dir: str) -> None:
    for part in ("function", "parameters"):
        (path,) = Path(cnn_dir).glob(f"{part}-*")
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + b"?")
        with pytest.raises(ValueError, match=f"{path.name} is damaged"):
            export.load(cnn_dir)
        path.unlink()
        with pytest.raises(FileNotFoundError, match=f"{path.name} is missing"):
            export.load(cnn_dir)
        path.write_bytes(whole)


def ask(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    assert predict.main(argv) == 0, capsys.readouterr().err
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def refusal(capsys: pytest.CaptureFixture[str], model: str, *files: str) -> str:
    """The one line that predict prints when it ends with 1."""
    assert predict.main(["--model", model, *files]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    return captured.err


def test_predict_of_files_predicts_each_example_in_order(
    job_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, where = saved(tiny.cnn(), job_dir)
    images, _ = tiny.examples(tiny.cnn(), 300)
    np.savez(tmp_path / "a.npz", images=images[..., 0])
    np.save(tmp_path / "b.npy", images)
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"inputs": image.tolist()}) + "\n" for image in images))
    predictions = ask(capsys, "--model", where, str(tmp_path / "a.npz"))
    assert len(predictions) == 300
    assert predictions == ask(capsys, "--model", where, str(tmp_path / "b.npy"))
    expected = np.argmax(export.load(where)(images)["logits"], axis=-1)
    assert [answer["class"] for answer in predictions] == expected.tolist()
    assert [answer["label"] for answer in predictions] == [f"cnn {label}" for label in expected]
    from_lines = ask(capsys, "--model", where, str(tmp_path / "c.jsonl"))
    assert [answer["class"] for answer in from_lines] == expected.tolist()


def test_predict_reads_examples_where_the_model_is(job_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, where = saved(tiny.transformer(), job_dir)
    open_folder(job_dir).write("inputs.jsonl", b"[1, 2, 3, 4, 5, 6]\n\n[6, 5, 4, 3, 2, 1]\n")
    predictions = ask(capsys, "--model", where, f"{job_dir}/inputs.jsonl")
    assert len(predictions) == 2
    assert all(answer["label"].startswith("transformer ") for answer in predictions)


def test_predict_of_an_image_resizes_it_and_floats_for_a_uint8_model_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    _, where = saved(tiny.resnet(), str(tmp_path / "job"))
    picture = np.random.default_rng(0).integers(256, size=(40, 20), dtype=np.uint8)
    Image.fromarray(picture).save(tmp_path / "grey.png")
    (answer,) = ask(capsys, "--model", where, str(tmp_path / "grey.png"))
    assert answer["label"] in class_names(tiny.resnet())
    np.save(tmp_path / "a.npy", np.full((1, 16, 16, 3), 0.5))
    assert "has 0.5 to 0.5; the model takes uint8" in refusal(capsys, where, str(tmp_path / "a.npy"))


def test_predict_from_stdin(cnn_dir: str) -> None:
    lines = json.dumps(tiny.examples(tiny.cnn(), 1)[0][0].tolist())
    done = subprocess.run(
        [sys.executable, "-m", "trainyard_trainer.predict", "--model", cnn_dir],
        cwd=TEMPLATE, input=lines, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"label", "class", "probability"}


INVALID_INPUTS = (
    ("a.jsonl", b"[1, 2]\n", r"a.jsonl, line 1 is int64 \[2\]; the model takes float32 \[8, 8, 1\]"),
    ("b.jsonl", b"\nhello\n", "b.jsonl, line 2 is not an example"),
    ("c.jsonl", b'{"pixels": []}\n', "c.jsonl, line 1 is not an example"),
    ("d.jsonl", b'["a"]\n', r"line 1 is <U1 \[1\]"),
    ("e.csv", b"1,2\n", "e.csv is of no known kind"),
)


def test_predict_of_invalid_input_names_the_problem(
    cnn_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusals = {}
    for name, content, message in INVALID_INPUTS:
        (tmp_path / name).write_bytes(content)
        error = refusal(capsys, cnn_dir, str(tmp_path / name))
        if not re.search(message, error):
            refusals[name] = error
    assert not refusals


def test_predict_without_a_model_or_a_file_is_one_line_and_1(
    job_dir: str, cnn_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, job_dir) == f"python -m trainyard_trainer.predict: there is no model in {job_dir}\n"
    (tmp_path / "file").write_text("a file")
    assert "file/model.json: Not a directory." in refusal(capsys, str(tmp_path / "file"))
    missing = refusal(capsys, cnn_dir, "nowhere/a.npz")
    assert missing == "python -m trainyard_trainer.predict: there is no file nowhere/a.npz\n"
