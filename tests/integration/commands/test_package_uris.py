"""Packages on gs:// that a server looks at before it accepts a job (`--check-packages`)."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beds import storage_emulator
from integration.api.api_support import ALICE, Clock, Server, package_job, server
from trainyard_protocol.net.gcs import CloudStorage
from trainyard_server.storage import readable_objects


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    with storage_emulator.emulator("models") as url:
        yield url


def refusal(api: Server, *uris: str) -> tuple[int, Any]:
    job = {"jobId": "job", "trainingInput": package_job(packageUris=uris)}
    answer = api.client.post("/v1/projects/p/jobs?validateOnly=true", json=job, headers=ALICE)
    return answer.status_code, answer.json().get("error")


def test_package_that_cannot_be_read_is_refused_where_the_site_says_so(tmp_path: Path, emulator: str) -> None:
    client = CloudStorage("The test", emulator).client()
    client.bucket("models").blob("there/a-1.tar.gz").upload_from_string("x")
    client.close()
    there, missing, nowhere = ("gs://models/there/a-1.tar.gz", "gs://models/b-1.tar.gz", "gs://no-such/c-1.tar.gz")
    with server(tmp_path, Clock(), storage_emulator=emulator, check_packages=True) as api:
        assert refusal(api, there)[0] == 200
        status, error = refusal(api, there, missing, nowhere)
        text = (
            f"The provided GCS paths [{missing}, {nowhere}] cannot be read by this server: {missing} does not exist. "
            f"{nowhere} does not exist."
        )
        assert (status, error["status"], error["message"]) == (
            400,
            "FAILED_PRECONDITION",
            f"Field: package_uris Error: {text}",
        )
        assert error["details"][0]["fieldViolations"] == [{"field": "package_uris", "description": text}]
    with server(tmp_path / "other", Clock(), storage_emulator=emulator) as api:
        assert refusal(api, missing)[0] == 200


def test_storage_that_does_not_answer_is_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable_objects, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with server(tmp_path, Clock(), storage_emulator=where, check_packages=True) as api:
            status, error = refusal(api, "gs://models/a-1.tar.gz")
    assert (status, error["message"]) == (503, f"Google Cloud Storage at {where} does not answer.")
