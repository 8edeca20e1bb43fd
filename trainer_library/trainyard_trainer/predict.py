"""Predictions of an exported model.

    python -m trainyard_trainer.predict --model output/model examples.npz     # its array `inputs` (or `images`, or `x`)
    python -m trainyard_trainer.predict --model gs://bucket/model photo.jpg
    python -m trainyard_trainer.predict --model output/model < instances.jsonl

Each line of JSON is one example: nested lists of numbers, or an object with them as its `inputs`. The output is one
line of JSON for each example, in their order: {"label": "7", "class": 7, "probability": 0.98}. A language model
predicts the next token. A task that is no classifier has the outputs that it exports. `--digits 10`
predicts ten held-out digits instead, and compares with their labels.

Exit codes: 0 success; 1 the model is missing or damaged, or an example does not fit it; 2 invalid flags.
"""

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.data.images import decode_image
from trainyard_trainer.errors import TrainerError
from trainyard_trainer.output.export import SavedModel, load
from trainyard_trainer.storage import read_file

BATCH = 128
ARRAY_NAMES = ("inputs", "images", "x")


class ExampleError(ValueError):
    """An example does not have the model's input shape or type."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainyard_trainer.predict", description="Predictions of an exported model."
    )
    parser.add_argument("--model", required=True, help="the model's directory: a path or gs://...")
    parser.add_argument(
        "--digits", type=int, metavar="N", help="predict N held-out digits and compare with their labels"
    )
    parser.add_argument(
        "file", nargs="*", default=["-"],
        help="examples: .npz, .npy, .jsonl, .png, .jpg, a path or gs://...; - (the default) is JSON from stdin",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    try:
        saved = load(arguments.model)
        if arguments.digits is not None:
            predict_digits(saved, arguments.digits)
        else:
            for name in arguments.file:
                for example in predictions(saved, read_examples(name, saved)):
                    print(json.dumps(example), flush=True)
    except (FileNotFoundError, TrainerError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the pipe is gone
        sys.stderr.close()
        return 1
    return 0


def predictions(saved: SavedModel, examples: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Label and probability of each example, or the outputs of a model that is no classifier; in batches."""
    labels = saved.about["labels"]
    while True:
        batch = [example for _, example in zip(range(BATCH), examples, strict=False)]
        if not batch:
            return
        inputs = jax.tree.map(lambda *arrays: np.stack(arrays), *batch)
        outputs = {name: np.asarray(values) for name, values in saved(inputs).items()}
        if "probabilities" not in outputs:  # of a task that is no classifier
            for number in range(len(batch)):
                yield {name: values[number].tolist() for name, values in outputs.items()}
            continue
        probabilities = outputs["probabilities"]
        probabilities_BK = probabilities.reshape(len(batch), -1, probabilities.shape[-1])[:, -1]
        for probabilities_K in probabilities_BK:
            best = int(np.argmax(probabilities_K))
            probability = round(float(probabilities_K[best]), 6)
            yield {"label": labels[best], "class": best, "probability": probability}


def read_examples(name: str, saved: SavedModel) -> Iterator[Any]:
    """The examples of a file, with the model's input shape and type. Those of several arrays are lines of JSON.

    Raises:
        ExampleError: one is of another shape, or not numbers.
        FileNotFoundError: there is no such file.
    """
    kind = PurePosixPath(name).suffix.lower()
    if list(saved.inputs) != ["inputs"] and PurePosixPath(name).suffix.lower() not in ("", ".json", ".jsonl"):
        raise ExampleError(f"{name}: an example has {', '.join(saved.inputs)}. Write it as a line of JSON (.jsonl).")
    if name == "-":
        return _from_lines(sys.stdin.buffer, "stdin", saved)
    data = read_file(name)
    if data is None:
        raise FileNotFoundError(f"there is no file {name}")
    if kind in (".json", ".jsonl"):
        return _from_lines(io.BytesIO(data), name, saved)
    if kind in (".npz", ".npy"):
        return _from_array(data, name, saved)
    if kind in (".png", ".jpg", ".jpeg"):
        return iter([_image(data, saved)])
    raise ExampleError(f"{name} is of no known kind: .npz, .npy, .jsonl, .png or .jpg.")


def predict_digits(saved: SavedModel, count: int) -> None:
    """Print the predictions and labels of held-out digits."""
    from trainyard_trainer.data import datasets

    held_out = datasets.digits().held_out
    numbers = np.arange(min(count, len(held_out)))
    images, expected = held_out.rows(numbers)
    inputs = np.round(255 * images) if saved.input_dtype == np.uint8 else images
    predicted = predictions(saved, (_checked(example, f"digit {n}", saved) for n, example in enumerate(inputs)))
    right = 0
    for number, (prediction, label) in enumerate(zip(predicted, expected, strict=True)):
        verdict = "right" if prediction["class"] == label else "wrong"
        right += verdict == "right"
        print(f"held-out digit {number}: predicted {prediction['label']}, is {label}: {verdict}")
    print(f"{right} of {len(expected)} right")


def _from_lines(lines: Any, name: str, saved: SavedModel) -> Iterator[Any]:
    several = list(saved.inputs) != ["inputs"]
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if several:
                example = {key: np.asarray(value[key]) for key in saved.inputs}
            elif isinstance(value, dict):
                example = {"inputs": np.asarray(next(value[key] for key in ARRAY_NAMES if key in value))}
            else:
                example = {"inputs": np.asarray(value)}
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            names = ", ".join(f'"{key}"' for key in saved.inputs)
            wanted = f"an object with {names}" if several else 'nested lists of numbers, or {"inputs": them}'
            raise ExampleError(f"{name}, line {number} is not an example: {wanted}.") from error
        checked = {key: _checked(array, f"{name}, line {number}", saved, key) for key, array in example.items()}
        yield checked if several else checked["inputs"]


def _from_array(data: bytes, name: str, saved: SavedModel) -> Iterator[NDArray[Any]]:
    loaded = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(loaded, np.ndarray):
        array = next((key for key in ARRAY_NAMES if key in loaded), None)
        if array is None:
            raise ExampleError(f"{name} has no array called {', '.join(ARRAY_NAMES)}.")
        loaded = loaded[array]
    for number, example in enumerate(loaded):
        yield _checked(example, f"{name}, example {number}", saved)


def _image(data: bytes, saved: SavedModel) -> NDArray[Any]:
    pixels = decode_image(data, saved.input_shape)
    return pixels if saved.input_dtype == np.uint8 else (pixels / 255).astype(saved.input_dtype)


def _checked(example: NDArray[Any], source: str, saved: SavedModel, key: str = "inputs") -> NDArray[Any]:
    shape, kind = saved.inputs[key]
    if (*example.shape, 1) == shape:  # a grayscale image without a channel axis
        example = example[..., np.newaxis]
    if example.shape != shape or example.dtype.kind not in "iufb":
        raise ExampleError(f"{source} is {example.dtype} {list(example.shape)}; the model takes {kind} {list(shape)}.")
    converted: NDArray[Any] = example.astype(kind)
    if kind.kind in "iu" and (converted != example).any():
        raise ExampleError(f"{source} has {example.min()} to {example.max()}; the model takes {kind}.")
    return converted


if __name__ == "__main__":
    sys.exit(main())
