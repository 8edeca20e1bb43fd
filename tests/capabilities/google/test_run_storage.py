"""The storage by the token of a run, as jobs of joined agents have it, and what a front passes on for containers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from capabilities.google.test_object_storage import UPLOAD, in_thread, local_storage
from integration.api.api_support import ADMIN, Clock, ScriptedAgent, running_agent, server, serving
from trainyard_protocol.wire.agents import CLUSTER
from trainyard_server.domain.access.route_access import MLFLOW
from trainyard_storage.api import LocalBackend, StorageApi
from trainyard_storage.app import StorageApp
from trainyard_storage.messages import Refused
from trainyard_storage.proxy import RemoteBackend
from trainyard_storage.remote import RemoteStorage
from trainyard_storage.tensorflow import Reach, TensorFlowProxy


@dataclass(frozen=True)
class Site:
    """A server with the buckets `ours` of the job's project and `theirs` of another."""

    client: httpx.Client
    agent: ScriptedAgent

    @property
    def token(self) -> str:
        return next(iter(self.agent.runs.values())).run_token

    def status(self, method: str, path: str, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return self.client.request(method, path, headers=headers, content=b"").status_code


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with (
        local_storage(tmp_path / "gcs") as address,
        server(tmp_path / "server", Clock(), storage_emulator=address) as api,
        serving(api.app) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=60) as client,
    ):
        for bucket, project in (("ours", "p"), ("theirs", "q")):
            made = client.post(f"/storage/v1/b?project={project}", json={"name": bucket}, headers=ADMIN)
            assert made.status_code == 200, made.text
        yield Site(client, running_agent(api))


def test_token_of_a_run_opens_the_buckets_of_its_project_alone_while_it_lives(site: Site) -> None:
    token, write = site.token, UPLOAD.format("ours", "x")
    forged = f"{token[:-1]}{'0' if token[-1] != '0' else '1'}"
    table = [
        ("POST", write, token, 200),
        ("GET", "/storage/v1/b/ours/o/x?alt=media", token, 200),
        ("DELETE", "/storage/v1/b/ours", token, 403),
        ("GET", "/storage/v1/b/theirs/o", token, 403),
        ("POST", UPLOAD.format("theirs", "x"), token, 403),
        ("GET", "/trainyard/v1/me", token, 403),
        ("GET", "/v1/projects/p/jobs", token, 403),
        ("POST", "/v1/projects/p/jobs/job:cancel", token, 403),
        ("GET", "/", token, 403),
        ("POST", "/agent/v1/sync", token, 403),
        ("GET", "/storage/v1/b/ours/o/x?alt=media", forged, 401),
    ]
    found = [(method, path, secret, site.status(method, path, secret)) for method, path, secret, _ in table]
    assert found == table
    site.agent.exit()
    assert site.status("GET", "/storage/v1/b/ours/o/x?alt=media", token) == 401


def test_agent_of_an_engine_gets_no_token_of_its_runs(site: Site) -> None:
    site.agent.info = site.agent.info.model_copy(update={"kind": CLUSTER})
    site.agent.sync()
    assert site.token == ""


async def test_containers_are_passed_on_as_the_front_is_told(tmp_path: Path) -> None:
    table: dict[tuple[Reach, str, str], bool] = {
        ("none", "127.0.0.1", "10.0.0.1:443"): True,
        ("none", "172.17.0.1", "93.184.215.14:443"): False,
        ("public", "172.17.0.1", "93.184.215.14:443"): True,
        ("public", "172.17.0.1", "10.0.0.1:443"): False,
        ("public", "172.17.0.1", "127.0.0.1:443"): False,
        ("public", "172.17.0.1", "169.254.169.254:80"): False,
        ("public", "172.17.0.1", "168.63.129.16:80"): False,
        ("public", "172.17.0.1", "[::ffff:10.0.0.1]:443"): False,
        ("all", "172.17.0.1", "10.0.0.1:443"): True,
    }
    found = {}
    for reach, caller, target in table:
        try:
            passed_on = await TensorFlowProxy(tmp_path, None, reach).checked(target, caller)
        except (Refused, OSError):
            passed_on = ""
        assert passed_on in ("", target)
        found[reach, caller, target] = bool(passed_on)
    assert found == table


def test_tracking_is_passed_on_by_both_storages_with_the_runs_own_token(site: Site, tmp_path: Path) -> None:
    url, token = str(site.client.base_url).rstrip("/"), site.token
    emulator = LocalBackend(StorageApi(tmp_path / "emulator"), RemoteStorage(url, by_proxies=False))
    joined = RemoteBackend(url, None, tmp_path)
    run = next(iter(site.agent.runs.values())).tracking_run
    with (
        in_thread(StorageApp(emulator, "secret-of-up")) as emulator_port,
        in_thread(StorageApp(joined, None)) as joined_port,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        for number, (port, secret) in enumerate(((emulator_port, "secret-of-up"), (joined_port, token))):
            address = f"http://127.0.0.1:{port}/{secret}"
            authorized = {"Authorization": f"Bearer {token}"}

            def status(method: str, path: str, headers: dict[str, str], body: object = None) -> int:
                return client.request(method, f"{address}{path}", headers=headers, json=body).status_code  # noqa: B023

            metric = {"run_id": run, "key": f"m{number}", "value": 1, "step": 1, "timestamp": 1}
            assert status("POST", f"{MLFLOW}/runs/log-metric", authorized, metric) == 200
            read = client.get(f"{address}{MLFLOW}/runs/get", params={"run_id": run}, headers=authorized)
            assert [item["key"] for item in read.json()["run"]["data"]["metrics"]][-1] == f"m{number}"
            made = client.post(f"{address}{MLFLOW}/logged-models", headers=authorized, json={"name": "m"}).json()
            model = f"{MLFLOW}/logged-models/{made['model']['info']['model_id']}"
            assert status("PATCH", model, authorized, {"status": "LOGGED_MODEL_READY"}) == 200
            assert status("DELETE", model, authorized) == 200
            assert status("GET", "/api/2.0/mlflow-artifacts/artifacts?path=none", authorized) == 200
            assert status("POST", "/api/3.0/mlflow/traces/search", authorized, {}) == 200
            wrong = {"Authorization": "Bearer wrong"}
            assert status("POST", f"{MLFLOW}/runs/log-metric", wrong, metric) == 401
            assert status("GET", f"{MLFLOW}/../../../trainyard/v1/me", authorized) in (403, 404)
            assert status("GET", f"{MLFLOW}/%2e%2e/me", authorized) == 404
