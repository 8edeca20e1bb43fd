"""Virtual environments with TensorFlow and torch, for programs that need them. Made once, then cached.

They take gigabytes and are in no extra of ours: nothing of ours imports them. `make test-all` runs this file first, so
that their installation is not beside tests, which it would slow down.
"""

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from beds.installed.caches import cache_directory

PINS = (
    *("tensorflow==2.21.0", "torch==2.13.0", "tqdm==4.67.1", "cloudml-hypertune==0.1.0.dev6"),
    *("mlflow==3.17.2", "scikit-learn==1.9.1", "pandas==3.1.1", "pillow==13.0.0", "xgboost-cpu==3.2.0"),
    *("lightgbm==4.7.0", "matplotlib==3.11.2", "psutil==7.2.2", "tensorboard==2.21.0"),
    *("transformers==5.24.0", "accelerate==1.15.0", "lightning==2.6.6"),
)
WITH_ESTIMATORS = ("tensorflow-cpu==2.15.1",)
"""The last TensorFlow that has tf.estimator and Keras 2, as the programs of AI Platform's time have."""
_TIMEOUT_S = 1200


class NoFrameworks(Exception):
    """The message says what is missing."""


def python(pins: tuple[str, ...] = PINS) -> Path:
    """The interpreter of the environment with these packages. Raises NoFrameworks where it cannot be made."""
    key = hashlib.sha256(json.dumps([pins, sys.version_info[:2]]).encode()).hexdigest()[:16]
    cache = cache_directory()
    directory = cache / f"frameworks-{key}"
    complete, interpreter = directory / "complete", directory / "bin" / "python"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "frameworks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(directory, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(directory)])
            _run([str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins])
            complete.touch()
    return interpreter


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NoFrameworks(f"TensorFlow and torch were not installed within {_TIMEOUT_S} s.") from error
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise NoFrameworks(f"TensorFlow and torch cannot be installed: {' '.join(reason)}")


if __name__ == "__main__":
    for pins in (PINS, WITH_ESTIMATORS):
        try:
            python(pins)
        except NoFrameworks as error:  # the tests that need them fail in CI, and are skipped elsewhere
            print(error)
