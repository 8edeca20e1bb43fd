"""Backups of a service that goes on: what is in them, what a restored one has, and what is refused."""

import gzip
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from beds import databases
from integration.api.api_support import ADMIN, Clock, ScriptedAgent, Server, running_agent, server
from trainyard_cli.capabilities.backups.archive import receive
from trainyard_cli.capabilities.backups.restoring import restore
from trainyard_protocol.answers.stored.backups import BackupManifest, ExaminationView
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument
from trainyard_server.capabilities.backups.backups import Backups
from trainyard_server.capabilities.backups.options import BackupOptions
from trainyard_storage.api import StorageApi
from trainyard_storage.records import Conditions
from trainyard_storage.store import ObjectStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[ObjectStore]:
    api = StorageApi(tmp_path / "state" / "gcs")
    yield api.store
    api.close()


@contextmanager
def service(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    """A server on a state directory with everything that a backup has."""
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)
    (state / "token").write_text("the token")
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("{projects: {p: {vcpus: 64}}}")
    (state / "local.json").write_text(f'{{"quotas": "{quotas}", "mounts": "/absent/mounts.yaml"}}')
    files = (state / "token", state / "local.json")
    backups = BackupOptions(storage_dir=state / "gcs", files=files)
    with server(state / "server", clock, options=(backups,), quotas=quotas) as api:
        yield api


def put(storage: ObjectStore, name: str, content: bytes) -> None:
    with storage.drafting() as draft:
        draft.write(content)
        storage.put("bucket", name, draft, {}, Conditions())


def upload(api: Server, content: bytes) -> str:
    path = "/upload/trainyard/v1/projects/p/packages/trainer.tar.gz"
    answer = api.client.post(path, content=content, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["uri"])


def set_secret(api: Server, value: str) -> None:
    body = {"value": value}
    answer = api.client.request("PUT", "/trainyard/v1/projects/p/secrets/KEY", json=body, headers=ADMIN)
    assert answer.status_code == 200, answer.text


def filled(api: Server, storage: ObjectStore) -> ScriptedAgent:
    """A job that has ended, one that runs, one that waits for a package, a secret and an object."""
    agent = running_agent(api, "ended")
    agent.log(*(f"line {n}" for n in range(2000)))
    agent.exit()
    running_agent(api, "running", agent=agent)
    agent.log("a line", run=agent.run)
    api.create("queued", packageUris=[upload(api, b"a package")], masterConfig={})
    set_secret(api, "hunter2")
    put(storage, "checkpoint", b"weights" * 1000)
    return agent


def back_up(api: Server, file: Path) -> BackupManifest:
    answer = api.client.post("/trainyard/v1/backups", headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return receive([answer.content], file, lambda _: None)


def faults(api: Server) -> dict[str, tuple[str, ...]]:
    view = ExaminationView.model_validate(api.get("/trainyard/v1/examination"))
    return {part.what: part.faults for part in view.examined}


def counts(api: Server) -> dict[str, int]:
    view = ExaminationView.model_validate(api.get("/trainyard/v1/examination"))
    return {part.what: part.count for part in view.examined}


@databases.on_every_database
def test_restored_service_has_jobs_logs_packages_secrets_quotas_and_objects(
    tmp_path: Path, clock: Clock, storage: ObjectStore
) -> None:
    file, database = tmp_path / "b.tar.gz", ""
    with service(tmp_path, clock) as api:
        filled(api, storage)
        is_postgresql = not api.use_cases.backend.store.exclusive
        manifest = back_up(api, file)
        assert file.stat().st_mode & 0o777 == 0o600
        assert (manifest.counts["jobs"], manifest.counts["secrets"]) == (3, 1)
        assert list((tmp_path / "state/server/backups-begun").iterdir()) == []
        lines = [entry.text for entry in api.use_cases.backend.logs.entries("p", "ended")]
    new = tmp_path / "new"
    if is_postgresql:
        database = databases.current.empty_url(new / "server")
        with pytest.raises(FailedPrecondition, match="--database"):
            restore(file, new)
    restored = restore(file, new, database)
    assert restored.missing == {"mounts": "/absent/mounts.yaml"}
    assert (new / "token").read_text() == "the token"
    assert "vcpus: 64" in (new / "restored-quotas.yaml").read_text()
    assert f'"quotas": "{new / "restored-quotas.yaml"}"' in (new / "local.json").read_text()
    backups = BackupOptions(storage_dir=new / "gcs")
    with server(new / "server", clock, options=(backups,)) as api:
        assert api.job("ended")["state"] == "SUCCEEDED"
        assert [entry.text for entry in api.use_cases.backend.logs.entries("p", "ended")] == lines
        assert faults(api) == dict.fromkeys(["jobs", "logs", "packages", "secrets", "rows of the audit", "objects"], ())
        found = counts(api)
        assert found.pop("rows of the audit") >= manifest.counts["audit"] > 0
        assert found == {"jobs": 3, "logs": 1, "packages": 1, "secrets": 1, "objects": 1}
        api.create("after")


def test_what_is_deleted_while_an_archive_is_written_is_in_it(
    tmp_path: Path, clock: Clock, storage: ObjectStore
) -> None:
    with service(tmp_path, clock) as api:
        agent = filled(api, storage)
        with api.use_cases.of(Backups).open() as archive:
            deleted = api.client.request("DELETE", "/trainyard/v1/projects/p/jobs/ended", headers=ADMIN)
            assert deleted.status_code == 200, deleted.text
            put(storage, "checkpoint", b"newer")
            agent.log("another line", run=agent.run)
            api.create("later")
            receive(archive.blocks, tmp_path / "b.tar.gz", lambda _: None)
    new = tmp_path / "new"
    restore(tmp_path / "b.tar.gz", new)
    with server(new / "server", clock, options=(BackupOptions(storage_dir=new / "gcs"),)) as api:
        assert not any(faults(api).values())
        assert sorted(job["jobId"] for job in api.get("/v1/projects/p/jobs")["jobs"]) == ["ended", "queued", "running"]
        assert counts(api)["logs"] == 1
        texts = [entry.text for entry in api.use_cases.backend.logs.entries("p", "running")]
        assert "a line" in texts
    restored = StorageApi(new / "gcs")
    _, content = restored.store.open("bucket", "checkpoint")
    with content:
        assert content.read() == b"weights" * 1000
    restored.close()


def test_job_is_not_deleted_while_a_backup_begins(
    tmp_path: Path, clock: Clock, storage: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard_server.storage.removal_lock.REMOVAL_WAIT_S", 0.0)
    with service(tmp_path, clock) as api:
        filled(api, storage)
        with api.use_cases.backend.removal_lock.keeping():
            answer = api.client.request("DELETE", "/trainyard/v1/projects/p/jobs/ended", headers=ADMIN)
        assert answer.status_code == 503
        assert api.job("ended")["state"] == "SUCCEEDED"
        assert not any(faults(api).values())


def test_examination_names_what_is_damaged(tmp_path: Path, clock: Clock, storage: ObjectStore) -> None:
    with service(tmp_path, clock) as api:
        filled(api, storage)
        root = tmp_path / "state"
        segment = root / "server/logs/p/ended/segment"
        segment.write_bytes(segment.read_bytes().replace(b'line 7"', b'line 8"'))
        (root / "server/keys/secrets").write_text("00" * 32)
        package = root / "server/staging" / hashlib.sha256(b"a package").hexdigest()
        package.write_bytes(b"another")
        (content,) = (root / "gcs/_store/objects").glob("*/*")
        content.write_bytes(b"another")
        result = {what: " ".join(lines) for what, lines in faults(api).items()}
    assert (result["jobs"], result["rows of the audit"]) == ("", "")
    assert "The log of master-replica-0 in run 1 of the job ended of p" in result["logs"]
    assert "trainer.tar.gz of the job queued has another digest" in result["packages"]
    assert "The secret KEY of p cannot be decrypted" in result["secrets"]
    assert result["objects"] == "gs://bucket/checkpoint: its content has 7 bytes, and should have 7000"


def test_damaged_archives_and_used_directories_are_refused(tmp_path: Path, clock: Clock, storage: ObjectStore) -> None:
    file, other = tmp_path / "b.tar.gz", tmp_path / "other.tar.gz"
    with service(tmp_path, clock) as api:
        filled(api, storage)
        back_up(api, file)
    whole = gzip.decompress(file.read_bytes())
    for content in (
        file.read_bytes()[:-200],
        gzip.compress(whole[: len(whole) // 2 // 512 * 512]),
        gzip.compress(whole.replace(b"a package", b"a Package")),
        gzip.compress(whole.replace(b"gcs/_store/objects.db", b"gcs/../ore/objects.db")),
        b"no archive",
    ):
        other.write_bytes(content)
        with pytest.raises(InvalidArgument, match=r"damaged|cut off|no backup"):
            restore(other, tmp_path / "new")
        assert not (tmp_path / "new").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(FailedPrecondition, match="not an empty directory"):
        restore(file, tmp_path / "used")
    (tmp_path / "used" / "file").unlink()
    restore(file, tmp_path / "used")
    assert (tmp_path / "used/server/trainyard.db").is_file()
