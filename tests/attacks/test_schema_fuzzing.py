"""Answers to generated calls of every route, held against the API's description: a short run of `make fuzz`."""

from pathlib import Path

import pytest

from attacks.schema_fuzzing import fuzz, fuzzed_service, fuzzings, traceback


@pytest.mark.long
@pytest.mark.e2e
def test_answers_to_generated_calls_are_as_described(tmp_path: Path) -> None:
    with fuzzed_service(tmp_path) as service:
        people = fuzzings(service)[0]
        done = fuzz(service, people, 1, "--phases", "examples,fuzzing", "--max-examples", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert not traceback(service)
