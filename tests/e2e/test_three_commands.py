"""Two machines by three commands, as in the tutorial: `up --listen`, `agents add`, `jobs submit`. The service
is installed from its wheel, on machines that are network namespaces.
"""

import json
from pathlib import Path
from socket import gethostname

import pytest

from beds.programs import Programs
from e2e.machines import OURS, Machine, let_in, machines
from e2e.test_wheel import installed, link_requirements, wheel  # noqa: F401 - a fixture

pytestmark = pytest.mark.e2e

CONFIG = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: local-1
  workerType: local-1
  workerCount: 1
"""
BOX = ("--runtime", "process", "--one-user", "--cpus", "1")
RING = Path(__file__).parent / "programs" / "ring.py"
WRITE = """

import urllib.request
bucket, _, name = os.environ["TRAINYARD_JOB_DIR"].removeprefix("gs://").partition("/")
host, me = os.environ["STORAGE_EMULATOR_HOST"], f"{me[0]}-{me[1]}"
url = f"{host}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}/{me}"
request = urllib.request.Request(url, f"of {me}".encode(), {"Content-Type": "text/plain"})
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read()
"""
GET = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + open(sys.argv[2]).read().strip()})
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read().decode())
"""


def test_three_commands_make_two_machines_that_run_a_gang_with_its_job_dir_on_gs(
    wheel: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    programs = installed(tmp_path / "venv", wheel, "--no-deps")
    link_requirements(tmp_path / "venv", "local")
    with machines(tmp_path, ["first", "box"]) as (first, box):
        here = first.programs
        here.environment["PATH"] = f"{programs}:{here.environment['PATH']}"
        here.environment.pop("PYTHONPATH", None)
        let_in(here, box)
        try:
            _three_commands(first, box, wheel)
        finally:
            here.run("trainyard", "down")


def _three_commands(first: Machine, box: Machine, wheel: Path) -> None:  # noqa: F811
    here, host, url = first.programs, f"root@{box.address}", f"https://{first.address}:8470"
    up = ("trainyard", "up", "--cpus", "0", "--runtime", "process")
    here.ok(*up)
    refused = here.run("trainyard", "agents", "add", host)
    assert refused.returncode == 1
    assert "`trainyard up --listen ADDRESS`" in refused.stderr
    assert f"This machine has {first.address}." in refused.stderr
    here.ok("trainyard", "down")

    started = here.ok(*up, "--listen", first.address)
    assert f"trainyard login {url} --ca-file" in started
    state = here.home / ".local/state/trainyard"
    token, trust = ("--token-file", str(state / "token")), ("--ca-file", str(state / "server" / "ca.pem"))
    untrusted = here.run("trainyard", "login", url, *token)
    assert (untrusted.returncode, "no authority that this machine trusts" in untrusted.stderr) == (1, True)
    here.ok("trainyard", "login", url, *token, *trust)
    here.ok("trainyard", "logout")
    added, name = here.done("trainyard", "agents", "add", host, "--wheel", str(wheel), *BOX).stderr, gethostname()
    assert f"{host}: another agent has the name {name}, so this one becomes {name}-2." in added
    assert f"{name}-2 is alive: 1 vCPU" in added, "and not this machine's agent, which was alive before"
    (here.home / "ring.py").write_text(RING.read_text() + WRITE)
    (here.home / "config.yaml").write_text(CONFIG)
    submit = ("jobs", "submit", "training", "ring", "--config", "config.yaml", "--package-path", "ring.py")
    log = here.done(*submit, "--stream-logs", "--", "--of-both").stderr
    assert "met worker-0" in log, log
    assert "Its replicas run on " in log, log
    assert f"MASTER_ADDR {first.address}" in log or f"MASTER_ADDR {box.address}" in log, log

    assert "gs://trainyard-local/local/root/ring" in here.ok("trainyard", "jobs", "describe", "ring", "--all")
    listing = _get(here, "http://127.0.0.1:8470/trainyard/v1/projects/local/jobs/ring/files")
    assert [entry["name"] for entry in json.loads(listing)["entries"]] == ["chief-0", "worker-0"]
    there = "http://127.0.0.1:8470/storage/plain/trainyard-local/local/root/ring"
    assert [_get(here, f"{there}/{name}").strip() for name in ("chief-0", "worker-0")] == ["of chief-0", "of worker-0"]

    here.ok("trainyard", "agents", "remove", host)
    assert [path for place in OURS for path in (box.programs.home / place.strip("/")).iterdir()] == []


def _get(here: Programs, url: str) -> str:
    return here.ok("python", "-c", GET, url, str(here.home / ".local/state/trainyard/token"))
