"""A backup of the real service under load, restored and rehearsed elsewhere by the installed program."""

import json
import shutil
from pathlib import Path

import pytest

from e2e.harness import Service, local

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


@pytest.mark.slow
def test_job_that_ran_at_the_backup_ends_elsewhere_from_its_checkpoint(own_service: Service, tmp_path: Path) -> None:
    service, file, new, go = own_service, tmp_path / "b.tar.gz", tmp_path / "restored", tmp_path / "go"
    service.program(CHECKPOINTS)
    config = str(service.config(**local(args=[str(go)])))
    submit = ("jobs", "submit", "training", "trained", "--config", config, "--package-path", "prog")
    service.ok(*submit, "--job-dir", "gs://models/trained")
    service.wait_for_line("trained", "step=3")
    service.ok("backup", str(file))
    assert json.loads(service.ok("rehearse", str(file), "-o", "json"))["good"]
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
