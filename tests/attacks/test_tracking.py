"""A hostile program logs through MLflow as fast as it can, while others read all of it: the server stays small, and
answers."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from attacks.service import AttackedService
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.storage.key_files import key_of

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.e2e]

API = "/api/2.0/mlflow"
CALLS, POINTS, READERS = 300, 1000, 6
MOST_MB = 250


@pytest.fixture
def service(tmp_path: Path) -> Iterator[AttackedService]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sleeping.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    agent = ["--runtime", "process", "--one-user", "--memory-gb", "16", "--usage-every", "0"]
    agent += ["--replica-env", f"PYTHONPATH={tmp_path / 'modules'}"]
    server = ("--one-user", "--requests-per-second", "0")
    with ExitStack() as stack:
        service = AttackedService(tmp_path, stack, ("alice", "mallory"), agent, server)
        service.start_agent()
        yield service


def program(service: AttackedService) -> tuple[httpx.Client, str]:
    """A client with the token of a run of Mallory, and the run's id."""
    service.submit("mallory", "hostile", pythonModule="sleeping")
    service.until(lambda: "up" in service.log("mallory", "hostile"))
    (started,) = service.state.glob("runs/*/*/started.json")
    token = RunTokens(key_of(service.root / "data" / "keys" / "sessions")).token(started.parts[-3])
    headers = {"Authorization": f"Bearer {token}"}
    client = httpx.Client(base_url=service.url, headers=headers, timeout=120, trust_env=False)
    experiment = client.get(f"{API}/experiments/get-by-name", params={"experiment_name": "x"}).json()
    body = {"experiment_ids": [experiment["experiment"]["experiment_id"]]}
    (run,) = client.post(f"{API}/runs/search", json=body).json()["runs"]
    return client, run["info"]["run_id"]


def memory_mb(service: AttackedService) -> float:
    """Most resident memory that the server has had."""
    status = Path(f"/proc/{service.programs.pid('server')}/status").read_text()
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak) / 1024


def test_what_one_program_logs_leaves_the_server_small_and_answering(service: AttackedService) -> None:
    client, run_id = program(service)
    with closing(client):
        for call in range(CALLS):
            first = call * POINTS
            metrics = [
                {"key": "loss", "value": (first + at) * 7919 % 10_007, "step": first + at, "timestamp": first + at + 1}
                for at in range(POINTS)
            ]
            answer = client.post(f"{API}/runs/log-batch", json={"run_id": run_id, "metrics": metrics})
            assert answer.status_code == 200, answer.text

        def read(_: int) -> int:
            count, token = 0, ""
            while True:
                query: dict[str, Any] = {"run_id": run_id, "metric_key": "loss", "page_token": token}
                page = json.loads(client.get(f"{API}/metrics/get-history", params=query).text)
                count += len(page["metrics"])
                token = page.get("next_page_token", "")
                if not token:
                    return count

        with ThreadPoolExecutor(READERS) as readers:
            counts = readers.map(read, range(READERS))
            assert service.job("alice", "hostile")["state"] == "RUNNING"  # answered meanwhile
            numbers = set(counts)
        assert len(numbers) == 1
        assert 50_000 < numbers.pop() <= 101_000
        (run,) = (client.get(f"{API}/runs/get", params={"run_id": run_id}).json()["run"],)
        assert [metric["step"] for metric in run["data"]["metrics"]] == [CALLS * POINTS - 1]
    assert [line for line in service.lines("mallory", "hostile") if "points of its metrics are thinned" in line]
    assert memory_mb(service) < MOST_MB
