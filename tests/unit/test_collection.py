"""Import cost of collecting the tests, which every worker of pytest-xdist pays."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The tests that use one of these modules.
USERS = (
    "trainer_library/tests",
    "trainer_template/tests",
    "tests/unit/agent/staging",
    "tests/capabilities/tensorboard",
    "tests/unit/protocol/net/test_gcs.py",
    "tests/unit/test_benchmarks.py",
)
COLLECT = """
import sys
import pytest

code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *sys.argv[1:]])
heavy = {"flax", "grain", "grpc", "jax", "optax", "optuna", "sklearn", "tensorboard", "tensorboardX"}
print(code.name, sorted(heavy & sys.modules.keys()))
"""


def test_collection_imports_no_training_framework() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, *USERS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["OK []"], done.stdout[-2000:] + done.stderr
