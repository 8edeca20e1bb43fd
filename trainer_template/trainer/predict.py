"""Ask a saved model: `python -m trainer.predict --model DIR --count 10` shows it held-out digits.

Exit codes: 0 answered; 1 there is no whole model in that place; 2 used wrongly.
"""

import argparse
import sys
from collections.abc import Sequence

import jax
import numpy as np

from trainer import data
from trainer.model import Cnn
from trainer.saving import load_model
from trainer.task import positive_int


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.predict", description="Predict held-out digits.")
    parser.add_argument("--model", required=True, help="the model's directory: a path or gs://...")
    parser.add_argument("--count", type=positive_int, default=10, help="how many digits (default: 10)")
    arguments = parser.parse_args(argv)
    try:
        saved = load_model(arguments.model)
    except (FileNotFoundError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    labels = saved.description["labels"]
    model = Cnn(**saved.description["model"] | {"channels": tuple(saved.description["model"]["channels"])})
    held_out = data.load().held_out
    images_BHWC, truth_B = held_out.images[: arguments.count], held_out.labels[: arguments.count]
    predicted_B = np.argmax(jax.jit(model.apply)({"params": saved.params}, images_BHWC), axis=-1)
    for number, (predicted, truth) in enumerate(zip(predicted_B, truth_B, strict=True)):
        verdict = "right" if predicted == truth else "wrong"
        print(f"held-out digit {number}: predicted {labels[predicted]}, is {labels[truth]}: {verdict}")
    print(f"{int(np.sum(predicted_B == truth_B))} of {len(truth_B)} right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
