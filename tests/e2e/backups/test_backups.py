"""A backup of the real service under load, restored and rehearsed elsewhere by the installed program."""

import json
import shutil
import tarfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e.harness import Service, local
from trainyard_protocol.views.stored.backups import MANIFEST, BackupManifest

SUBMITS_PER_S = 50
CHECKPOINTS = """
import os, pathlib, sys, time, urllib.error, urllib.request
bucket, _, name = os.environ["TRAINYARD_JOB_DIR"].removeprefix("gs://").partition("/")
objects, key = os.environ["STORAGE_EMULATOR_HOST"] + "/{}storage/v1/b/" + bucket + "/o{}", f"{name}/step"
try:
    step = int(urllib.request.urlopen(objects.format("", f"/{key.replace('/', '%2F')}?alt=media")).read())
except urllib.error.HTTPError:
    step = 0
print(f"begins at step {step}", flush=True)
while step < 6:
    step += 1
    url = objects.format("upload/", f"?uploadType=media&name={key}")
    urllib.request.urlopen(urllib.request.Request(url, str(step).encode(), {"Content-Type": "text/plain"})).read()
    print(f"step={step}", flush=True)
    while step == 3 and not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
"""
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


@pytest.mark.slow
def test_job_that_ran_at_the_backup_ends_elsewhere_from_its_checkpoint(own_service: Service, tmp_path: Path) -> None:
    service, file, new, go = own_service, tmp_path / "b.tar.gz", tmp_path / "restored", tmp_path / "go"
    service.program(CHECKPOINTS)
    config = str(service.config(**local(args=[str(go)])))
    submit = ("jobs", "submit", "training", "trained", "--config", config, "--package-path", "prog")
    service.ok(*submit, "--job-dir", "gs://models/trained")
    service.wait_for_line("trained", "step=3")
    service.ok("backup", str(file))
    service.ok("down")
    shutil.rmtree(service.state_dir)
    go.touch()
    restored = service.ok("restore", str(file), "--state-dir", str(new))
    assert "Jobs that were running then continue from their checkpoints." in restored
    service.environment["TRAINYARD_STATE_DIR"], service.state_dir = str(new), new
    try:
        service.ok("up", timeout=300)
        followed = service.run("jobs", "stream-logs", "trained", timeout=300)
        assert followed.returncode == 0, followed.stderr
        assert service.state("trained") == "SUCCEEDED"
        log = [line for line in service.log("trained").splitlines() if "step" in line]
        steps = [line.rpartition("=")[2] for line in log if "step=" in line]
        assert steps == ["1", "2", "3", "4", "5", "6"], log
        assert any("begins at step 3" in line for line in log)
        assert "was restored from a backup" in service.log("trained")
        detail = json.loads(service.ok("jobs", "describe", "trained", "-o", "json", "--all"))
        assert [run["verdict"]["reason"] for run in detail["runs"]] == ["RESTORED", "COMPLETED"]
        assert len(service.ok("agents", "list", "--format", "value(name)").split()) == 1
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
