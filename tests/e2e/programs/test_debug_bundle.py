"""The archive for whoever helps: what is in it, and that no secret is."""

import json
import tarfile
from pathlib import Path

import pytest

from e2e.harness import Service


@pytest.mark.e2e
@pytest.mark.slow
def test_bundle_has_the_state_of_a_service_and_none_of_its_secrets(service: Service, tmp_path: Path) -> None:
    service.program("print('hello')")
    service.ok(
        "jobs",
        "submit",
        "training",
        "waits",
        "--config",
        str(service.config(scaleTier="BASIC")),
        "--package-path",
        "prog",
    )
    service.wait_for("waits", "SUCCEEDED")
    path = tmp_path / "bundle.tar.gz"
    service.ok("debug-bundle", str(path))
    with tarfile.open(path) as archive:
        parts = {
            Path(member.name).name: extracted.read().decode()
            for member in archive.getmembers()
            if (extracted := archive.extractfile(member)) is not None
        }
    assert parts.keys() == {
        *("versions.json", "server.json", "health.json", "status.json", "queue.json"),
        *("server.log", "agent.log", "storage.log"),
    }
    state = json.loads(parts["server.json"])
    assert state["settings"]["--data-dir"]
    assert state["versions"]["fastapi"]
    assert json.loads(parts["health.json"])
    root = service.state_dir
    secrets = [(root / name).read_text().strip() for name in ("token", "agent-token", "storage-token")]
    secrets += [file.read_bytes().hex() for file in (root / "server" / "keys").iterdir() if file.is_file()]
    assert [secret for secret in secrets if any(secret in text for text in parts.values())] == []
    again = service.run("debug-bundle", str(path))
    assert again.returncode
    assert "exists: give another name" in again.stderr
