"""Tests of what a machine may lack: they are skipped there, and fail in CI, where nothing is skipped."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest


def skip_without(why: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def need_program(*names: str) -> str:
    """The path of the first of these programs that is installed."""
    for name in names:
        if path := shutil.which(name):
            return path
    skip_without(f"{names[0]} is not installed: scripts/test-tools.sh installs it")


@contextmanager
def needing(missing: type[Exception]) -> Iterator[None]:
    """Skip the test if the block raises this, with its words."""
    try:
        yield
    except missing as error:
        skip_without(str(error))
