"""A backup of the real service under load, restored and rehearsed elsewhere by the installed program."""

import json
import tarfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e.harness import Service, local
from trainyard_protocol.views.stored.backups import MANIFEST, BackupManifest

SUBMITS_PER_S = 50
PROGRAM = """
for n in range(500):
    print(f"line {n}", flush=True)
"""


class Load:
    """Submits jobs that wait, 50 a second, from four threads, until it is stopped."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._submit, args=(number,)) for number in range(4)]
        self.acknowledged: dict[str, datetime] = {}

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _submit(self, thread: int) -> None:
        number, began = 0, time.monotonic()
        with self._service.client() as client:
            while not self._is_over.is_set():
                name = f"load_{thread}_{number}"
                spec = {"scaleTier": "CUSTOM", "masterType": "n1-standard-96", "pythonModule": "a.b"}
                client.create_job({"jobId": name, "trainingInput": spec})
                self.acknowledged[name] = datetime.now(UTC)
                number += 1
                self._is_over.wait(max(0.0, began + number * len(self._threads) / SUBMITS_PER_S - time.monotonic()))


@pytest.mark.long
def test_backup_under_load_is_restored_elsewhere_with_all_that_was_acknowledged(
    strict_service: Service, tmp_path: Path
) -> None:
    service = strict_service
    service.program(PROGRAM)
    service.config(**local())
    service.train("trained", "--config", "config.yaml")
    (tmp_path / "value").write_text("hunter2")
    service.ok("secrets", "set", "KEY", "--from-file", str(tmp_path / "value"))
    file, new = tmp_path / "b.tar.gz", tmp_path / "restored"
    with Load(service) as load:
        while len(load.acknowledged) < 2 * SUBMITS_PER_S:
            time.sleep(0.01)
        assert "verified" in service.ok("backup", str(file))
        before = len(load.acknowledged)
        while len(load.acknowledged) < before + SUBMITS_PER_S:
            time.sleep(0.01)
    manifest = manifest_of(file)
    expected = {name for name, moment in load.acknowledged.items() if moment < manifest.time}
    assert len(expected) >= 2 * SUBMITS_PER_S
    rehearsed = json.loads(service.ok("rehearse", str(file), "-o", "json"))
    assert rehearsed["good"], rehearsed
    examined = {part["what"]: part["count"] for part in rehearsed["examined"]}
    assert examined["jobs"] == manifest.counts["jobs"] >= len(expected) + 1
    assert examined["logs"] == 1
    lines = service.log("trained")
    service.ok("down")
    service.ok("restore", str(file), "--state-dir", str(new))
    service.environment["TRAINYARD_STATE_DIR"] = str(new)
    service.state_dir = new
    service.ok("up", timeout=300)
    try:
        with service.client() as client:
            names = {str(job["jobId"]) for job in client.list_jobs()}
        assert expected <= names
        assert service.log("trained") == lines
        assert "line 499" in lines
    finally:
        service.ok("down")


def test_rehearsal_of_a_damaged_backup_says_so_with_exit_code_1(own_service: Service, tmp_path: Path) -> None:
    file = tmp_path / "b.tar.gz"
    own_service.ok("backup", str(file))
    file.write_bytes(file.read_bytes()[:-100])
    done = own_service.run("rehearse", str(file))
    assert done.returncode == 1
    assert "FAULT in archive" in done.stdout


def manifest_of(file: Path) -> BackupManifest:
    with tarfile.open(file) as tar:
        content = tar.extractfile(MANIFEST)
        assert content is not None
        return BackupManifest.model_validate_json(content.read())
