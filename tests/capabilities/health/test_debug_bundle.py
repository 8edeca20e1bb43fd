"""The archive for whoever helps: its parts, also without a server, and that no secret is in it."""

import json
import tarfile
from pathlib import Path

import pytest

from e2e.harness import Service


def parts_of(path: Path) -> dict[str, str]:
    """The texts of a bundle by name."""
    with tarfile.open(path) as archive:
        return {
            Path(member.name).name: extracted.read().decode()
            for member in archive.getmembers()
            if (extracted := archive.extractfile(member)) is not None
        }


def secrets_of(root: Path) -> dict[str, str]:
    """The tokens and keys of a local service, by file."""
    files = [root / name for name in ("token", "agent-token", "storage-token")]
    files += [file for file in (root / "server" / "keys").iterdir() if file.is_file()]
    secrets = {file.name: file.read_text().strip() for file in files}
    return secrets | {"agent.json": json.loads((root / "agent" / "agent.json").read_text())["key"]}


@pytest.mark.e2e
@pytest.mark.slow
def test_bundle_has_the_state_of_a_service_and_none_of_its_secrets(service: Service, tmp_path: Path) -> None:
    service.program("print('hello')")
    config = str(service.config(scaleTier="BASIC"))
    service.ok("jobs", "submit", "training", "waits", "--config", config, "--package-path", "prog")
    service.wait_for("waits", "SUCCEEDED")
    root = service.state_dir
    (service.work / "value").write_text("value-of-a-secret-of-the-project")
    service.ok("secrets", "set", "API_KEY", "--from-file", str(service.work / "value"))
    secrets = secrets_of(root)
    assert {"token", "agent-token", "storage-token", "sessions", "agent.json"} < secrets.keys()
    secrets["made"] = service.ok("tokens", "create", "--expires", "1h").split()[-1]
    authority = (root / "google-names" / "authority.pem").read_text()
    with (root / "log" / "agent.log").open("a") as log:  # a fault that writes each of them into a log
        log.writelines(f"with {secret} at the end\n" for secret in secrets.values())
        log.write(f"{authority}\nhttp://user:of-a-url@127.0.0.1/\nthe line after them\n")
    secrets["url"] = "of-a-url"
    # Those that are only in the database, or made of a key: no log has them.
    secrets["signing"] = service.ok("channels", "signing-key").strip()
    secrets["secret"] = "value-of-a-secret-of-the-project"
    secrets["authority"] = authority.splitlines()[1]

    path = tmp_path / "bundle.tar.gz"
    service.ok("debug-bundle", str(path))
    parts = parts_of(path)
    assert parts.keys() == {
        *("versions.json", "server.json", "health.json", "status.json", "queue.json", "doctor.json"),
        *("server.log", "agent.log", "storage.log"),
    }
    assert "the line after them" in parts["agent.log"]
    assert [name for name, secret in secrets.items() if any(secret in text for text in parts.values())] == []
    assert path.stat().st_mode & 0o777 == 0o600
    state = json.loads(parts["server.json"])
    assert state["settings"]["--data-dir"]
    assert state["versions"]["fastapi"]
    assert json.loads(parts["status.json"])["agents"]
    assert {finding["check"] for finding in json.loads(parts["doctor.json"])} > {"server", "ports"}
    again = service.run("debug-bundle", str(path))
    assert again.returncode
    assert "exists: give another name" in again.stderr

    service.ok("down")
    service.ok("debug-bundle", str(tmp_path / "stopped.tar.gz"))
    stopped = parts_of(tmp_path / "stopped.tar.gz")
    assert "The local server is not running" in json.loads(stopped["server.json"])["error"]
    assert stopped["server.log"]
    assert {finding["check"] for finding in json.loads(stopped["doctor.json"])} > {"ports"}
