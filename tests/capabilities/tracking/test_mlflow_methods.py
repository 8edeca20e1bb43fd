"""Each public method of MlflowClient, called by a program: docs/reference/mlflow.md has the outcomes.

`TRAINYARD_WRITE_DOCS=1` writes them into the page.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.harness import REPOSITORY, Service, started
from e2e.programs.test_programs import PROGRAMS

PAGE = REPOSITORY / "docs" / "reference" / "mlflow.md"
TABLE = re.compile(
    r"(<!-- methods: written by tests/capabilities/tracking/test_mlflow_methods\.py -->\n).*?(<!-- /methods -->)", re.S
)
LONGEST = 300

pytestmark = [pytest.mark.e2e, pytest.mark.frameworks]


@pytest.fixture(scope="module")
def service(frameworks_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from started(tmp_path_factory.mktemp("methods"), "--python", str(frameworks_python))


def test_page_says_which_methods_of_the_client_work(service: Service) -> None:
    program = PROGRAMS / "clients" / "mlflow_methods.py"
    service.ok("jobs", "submit", "training", "methods", "--package-path", str(program))
    assert service.wait_for("methods", "SUCCEEDED", "FAILED", timeout=900) == "SUCCEEDED", service.log("methods")
    refusals = {line["method"]: line["refusal"] for line in printed(service.log("methods"))}
    assert refusals, service.log("methods")
    without_row = [method for method, words in refusals.items() if words == "no row in CALLS"]
    assert not without_row, f"tests/programs/clients/mlflow_methods.py has no call of {without_row}"
    page = PAGE.read_text()
    assert TABLE.search(page), f"{PAGE.name} has no place for the table"
    written = TABLE.sub(lambda marks: marks[1] + table(refusals) + marks[2], page)
    if os.environ.get("TRAINYARD_WRITE_DOCS"):
        PAGE.write_text(written)
    assert PAGE.read_text() == written, "run this test with TRAINYARD_WRITE_DOCS=1"


def printed(log: str) -> Iterator[dict[str, str]]:
    for line in log.splitlines():
        if line.startswith('{"method": '):
            yield json.loads(line)


def table(refusals: dict[str, str]) -> str:
    """A row for each outcome, with the methods that have it: those that work first."""
    outcomes: dict[str, list[str]] = {"works": []}
    for method in sorted(refusals):
        outcomes.setdefault(sentence(refusals[method]) or "works", []).append(method)
    rows = [
        f"| {outcome} | {', '.join(f'`{method}`' for method in methods)} |" for outcome, methods in outcomes.items()
    ]
    return "\n".join(["| outcome | methods |", "|---|---|", *rows, ""])


def sentence(refusal: str) -> str:
    """A refusal without what differs from run to run, and from method to method."""
    words = re.sub(r"\bjob-\d+(-\d+)?\b", "RUN", refusal)
    words = re.sub(r"\b(m-|tr-)?[0-9a-f]{32}\b", "ID", words)
    words = re.sub(r"http://[\w.:]+", "URL", words)
    words = re.sub(r"MLflow's \S+ is", "MLflow's METHOD is", words)
    return words[:LONGEST].replace("|", "\\|").replace("<", "&lt;")
