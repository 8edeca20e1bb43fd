"""Ask a saved model, in a process that needs nothing of its training.

    python -m trainer.predict --model output/model examples.npz     # its array `inputs` (or `images`, or `x`)
    python -m trainer.predict --model gs://bucket/model photo.jpg
    python -m trainer.predict --model output/model < instances.jsonl

Each line of JSON is one example: nested lists of numbers, or an object with them as its `inputs`. The answer is one
line of JSON for each example, in their order: {"label": "7", "class": 7, "probability": 0.98}. A model of tokens
answers with the one that follows them. `--digits 10` asks for ten held-out digits instead, and says which are right.

Exit codes: 0 answered; 1 there is no whole model there, or an example is nothing that it takes; 2 used wrongly.
"""

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.export import SavedModel, load
from trainer.storage import open_folder

BATCH = 128
ARRAY_NAMES = ("inputs", "images", "x")


class ExampleError(ValueError):
    """An example is nothing that the model takes."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.predict", description="Ask a saved model.")
    parser.add_argument("--model", required=True, help="the model's directory: a path or gs://...")
    parser.add_argument(
        "--digits", type=int, metavar="N", help="ask for N held-out digits, and compare with the truth"
    )
    parser.add_argument(
        "file", nargs="*", default=["-"],
        help="examples: .npz, .npy, .jsonl, .png, .jpg, a path or gs://...; - (the default) is JSON from stdin",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    try:
        saved = load(arguments.model)
        if arguments.digits is not None:
            ask_for_digits(saved, arguments.digits)
        else:
            for name in arguments.file:
                for example in predictions(saved, read_examples(name, saved)):
                    print(json.dumps(example), flush=True)
    except (FileNotFoundError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the answers has enough of them
        sys.stderr.close()
        return 1
    return 0


def predictions(saved: SavedModel, examples: Iterator[NDArray[Any]]) -> Iterator[dict[str, Any]]:
    """Label and probability of each example, so many of them asked at a time."""
    labels = saved.about["labels"]
    while True:
        batch = [example for _, example in zip(range(BATCH), examples, strict=False)]
        if not batch:
            return
        inputs = np.stack(batch)
        probabilities = np.asarray(saved(inputs)["probabilities"])
        probabilities_BK = probabilities.reshape(len(batch), -1, probabilities.shape[-1])[:, -1]
        for probabilities_K in probabilities_BK:
            best = int(np.argmax(probabilities_K))
            probability = round(float(probabilities_K[best]), 6)
            yield {"label": labels[best], "class": best, "probability": probability}


def read_examples(name: str, saved: SavedModel) -> Iterator[NDArray[Any]]:
    """The examples in a file, as the model takes them.

    Raises:
        ExampleError: one is of another shape, or not numbers.
        FileNotFoundError: there is no such file.
    """
    kind = PurePosixPath(name).suffix.lower()
    if name == "-":
        return _from_lines(sys.stdin.buffer, "stdin", saved)
    folder, _, file = name.rpartition("/")
    data = open_folder(folder or ("/" if name.startswith("/") else ".")).read(file)
    if data is None:
        raise FileNotFoundError(f"there is no file {name}")
    if kind in (".json", ".jsonl"):
        return _from_lines(io.BytesIO(data), name, saved)
    if kind in (".npz", ".npy"):
        return _from_array(data, name, saved)
    if kind in (".png", ".jpg", ".jpeg"):
        return iter([_image(data, saved)])
    raise ExampleError(f"{name} is of no known kind: .npz, .npy, .jsonl, .png or .jpg.")


def ask_for_digits(saved: SavedModel, count: int) -> None:
    """Show held-out digits, what the model says they are, and what they are."""
    from trainer import data

    held_out = data.digits().held_out
    numbers = np.arange(min(count, len(held_out)))
    images, truth = held_out.rows(numbers)
    inputs = np.round(255 * images) if saved.input_dtype == np.uint8 else images
    answers = predictions(saved, (_checked(example, f"digit {n}", saved) for n, example in enumerate(inputs)))
    right = 0
    for number, (answer, is_) in enumerate(zip(answers, truth, strict=True)):
        verdict = "right" if answer["class"] == is_ else "wrong"
        right += verdict == "right"
        print(f"held-out digit {number}: predicted {answer['label']}, is {is_}: {verdict}")
    print(f"{right} of {len(truth)} right")


def _from_lines(lines: Any, name: str, saved: SavedModel) -> Iterator[NDArray[Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if isinstance(value, dict):
                value = next(value[key] for key in ARRAY_NAMES if key in value)
            example = np.asarray(value)
        except (ValueError, StopIteration) as error:
            raise ExampleError(
                f'{name}, line {number} is not an example: nested lists of numbers, or {{"inputs": them}}.'
            ) from error
        yield _checked(example, f"{name}, line {number}", saved)


def _from_array(data: bytes, name: str, saved: SavedModel) -> Iterator[NDArray[Any]]:
    loaded = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(loaded, np.ndarray):
        found = next((key for key in ARRAY_NAMES if key in loaded), None)
        if found is None:
            raise ExampleError(f"{name} has no array called {', '.join(ARRAY_NAMES)}.")
        loaded = loaded[found]
    for number, example in enumerate(loaded):
        yield _checked(example, f"{name}, example {number}", saved)


def _image(data: bytes, saved: SavedModel) -> NDArray[Any]:
    from PIL import Image  # only here: who asks with arrays need not have it

    height, width, channels = saved.input_shape
    with Image.open(io.BytesIO(data)) as image:
        resized = image.convert("L" if channels == 1 else "RGB").resize(
            (width, height), Image.Resampling.BILINEAR
        )
    pixels = np.asarray(resized, np.uint8).reshape(saved.input_shape)
    return pixels if saved.input_dtype == np.uint8 else (pixels / 255).astype(saved.input_dtype)


def _checked(example: NDArray[Any], where: str, saved: SavedModel) -> NDArray[Any]:
    if (*example.shape, 1) == saved.input_shape:  # an image without the axis of its one channel
        example = example[..., np.newaxis]
    if example.shape != saved.input_shape or example.dtype.kind not in "iufb":
        raise ExampleError(
            f"{where} is {example.dtype} {list(example.shape)}; the model takes {saved.input_dtype} "
            f"{list(saved.input_shape)}."
        )
    converted: NDArray[Any] = example.astype(saved.input_dtype)
    if saved.input_dtype.kind in "iu" and (converted != example).any():
        raise ExampleError(
            f"{where} has {example.min()} to {example.max()}; the model takes {saved.input_dtype}."
        )
    return converted


if __name__ == "__main__":
    sys.exit(main())
