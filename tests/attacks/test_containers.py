"""Hostile jobs in containers, of an agent that is root: each owner has a user of its own, who gets nowhere.

The real server, agent and engine. Alice's job is the victim, Mallory's attack: as an image, as a package that is
installed and run, and by replacing the job-dir of a next job while that starts.
"""

import json
import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import docker.types
import pytest
import yaml

from attacks import hostile
from attacks.service import AttackedService, package
from beds.engines import Engine
from trainyard_agent.engines.docker import users
from trainyard_agent.engines.docker.spec import RUN

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.containers,
    pytest.mark.skipif(os.geteuid() != 0, reason="the agent is root"),
]

SECRETS = [{"name": "KEY"}, {"name": "KEY", "file": "/run/secrets/key"}]
VICTIM = """
import os, time
assert os.getuid() and open("/run/secrets/key").read() == os.environ["KEY"]
open(os.path.join(os.environ["TRAINYARD_JOB_DIR"], "model"), "w").write("alice's")
print("up", flush=True)
time.sleep(1000)
"""
INSTALLS = """
import contextlib, io, json, hostile
from setuptools import setup
with contextlib.redirect_stdout(io.StringIO()) as printed:
    hostile.main(json.dumps(TARGETS))
with open("installed.py", "w") as file:
    file.write(f"TEXT = {printed.getvalue()!r}")
setup(name="hostile", version="1", py_modules=["hostile", "attacks", "installed"])
"""
RUNS = """
import json, hostile, installed
print(installed.TEXT)
hostile.main(json.dumps(TARGETS | {"environment": hostile.__file__}))
"""
SWAPS = """
import os, shutil, sys
job_dir, trap = sys.argv[1:3]
os.chdir(job_dir)
os.symlink(trap, "link")
for way in (job_dir, os.path.dirname(job_dir)):
    try:
        os.rename(way, way + ".away")
        print("renamed", way, flush=True)
    except OSError as error:
        print("kept", way, error, flush=True)
print("swapping", flush=True)
while True:
    try:
        os.rename("next", "away"); os.rename("link", "next")
        os.rename("next", "link"); os.rename("away", "next")
    except OSError:  # the agent made one in between
        if os.path.islink("next"):
            os.unlink("next")
        os.makedirs("next", exist_ok=True)
        shutil.rmtree("away", ignore_errors=True)
        if not os.path.lexists("link"):
            os.symlink(trap, "link")
"""
NEXT = """
import os
job_dir = os.environ["TRAINYARD_JOB_DIR"]
try:
    open(os.path.join(job_dir, "model"), "w").write("mallory's")
    print("wrote", os.listdir(job_dir))
except OSError as error:
    print("failed", error)
"""


@pytest.fixture(scope="module")
def service(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedService]:
    root = tmp_path_factory.mktemp("attacked")
    table = {"images": {"base": {"image": engine.base_image}}, "versions": {"*": {"cpu": "base"}}}
    (root / "runtimes.yaml").write_text(yaml.safe_dump(table))
    agent = ["--runtime", "docker", "--pull", "never", "--runtimes", str(root / "runtimes.yaml")]
    agent += ["--job-dir-root", str(root / "jobs"), "--memory-gb", "16"]
    with ExitStack() as stack:
        people = ("alice", "mallory")
        made = AttackedService(root, stack, people, agent, environment=engine.environment)
        made.start_agent()
        made.set_secret("KEY", "the victim's key")
        made.submit("alice", "victim", **image(engine, VICTIM), secrets=SECRETS)
        made.until(lambda: made.log("alice", "victim") == ["up"])
        stack.callback(remove_containers, engine, made)
        yield made


def remove_containers(engine: Engine, service: AttackedService) -> None:
    service.cancel("alice", "victim")
    service.end("alice", "victim")
    service.until(lambda: not engine.remaining(RUN))


def image(engine: Engine, program: str, *arguments: object, **fields: str) -> dict[str, Any]:
    command = ["python3", "-c", program, *map(str, arguments)]
    return {"masterConfig": {"imageUri": engine.base_image, "containerCommand": command}, **fields}


def state_of(engine: Engine, **labels: str) -> Mapping[str, Any]:
    """The state of the only container with these labels."""
    wanted = [f"trainyard.{name}={value}" for name, value in labels.items()]
    (found,) = engine.client().containers.list(filters={"label": wanted})
    state: Mapping[str, Any] = {"Id": found.id, **found.attrs["State"]}
    return state


def user_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def test_hostile_jobs_reach_nothing_and_leave_nothing(service: AttackedService, engine: Engine) -> None:
    victim = state_of(engine, job="p/victim")
    (secret,) = service.state.glob("containers/*/secrets/KEY/key")
    assert secret.read_text() == "the victim's key"
    job_dir = service.jobs / "p" / "mallory" / "hostile"
    targets = {
        "token": service.root / "agent-token",
        "state": service.state,
        "other": service.state / "containers" / "victim",
        "other_secret": secret,
        "other_pid": victim["Pid"],
        "other_job_dir": service.jobs / "p" / "alice" / "victim",
        "job_dir": job_dir,
        "server": service.url,
        "engine": engine.url.removeprefix("unix://"),
    }
    given = {name: str(target) for name, target in targets.items()}
    texts = {
        "setup": INSTALLS.replace("TARGETS", repr(given | {"job_dir": "/tmp"})),
        "attacks": RUNS.replace("TARGETS", repr(given)),
        "hostile": Path(hostile.__file__).read_text(),
    }
    attack = image(engine, texts["hostile"], json.dumps(given), jobDir=str(job_dir))
    service.submit("mallory", "as_image", **attack)
    as_package = {"pythonModule": "attacks", "jobDir": str(job_dir)}
    service.submit("mallory", "as_package", [package("hostile", **texts)], **as_package)
    elsewhere = image(engine, "", jobDir=str(targets["other_job_dir"]))
    service.submit("mallory", "as_alice", **elsewhere)

    refused = service.end("mallory", "as_alice")["errorMessage"]
    assert f"may mount only directories below {service.jobs}/p/mallory" in refused
    of_image = [name for name, (_, needs) in hostile.ATTACKS.items() if set(needs) <= given.keys()]
    of_package = [name for name, (_, needs) in hostile.ATTACKS.items() if "own_log" not in needs]
    attempts = {"as_image": of_image, "as_package": of_image + of_package}
    for job, expected in attempts.items():
        ended = service.end("mallory", job)
        printed = service.log("mallory", job)
        assert ended["state"] == "SUCCEEDED", (ended, printed)
        rows = [json.loads(line) for line in printed if line.startswith("{")]
        facts = [row["facts"] for row in rows if "facts" in row]
        attacks = [row for row in rows if "facts" not in row]
        assert [row for row in attacks if not row["held"]] == []
        assert [row["attack"] for row in attacks] == expected
        for one in facts:
            (user,) = {*one["Uid"].split(), *one["Gid"].split()}
            assert users.FIRST <= int(user) < users.FIRST + users.COUNT
            assert (int(one["CapPrm"], 16), one["NoNewPrivs"]) == (0, "1")

    left = (job_dir / "shell").stat()
    assert left.st_uid == int(user) != user_of(victim["Pid"])
    with pytest.raises(KeyError):
        pwd.getpwuid(left.st_uid)
    assert (service.jobs / "p" / "alice" / "victim" / "model").read_text() == "alice's"
    assert state_of(engine, job="p/victim") == victim


@contextmanager
def swapping(engine: Engine, job_dir: Path, trap: Path) -> Iterator[list[str]]:
    """A container like that of a job, with the mount and the user that a job of the same owner has there: a small
    machine has CPUs for two jobs. Yields what it printed first."""
    mount = docker.types.Mount(str(job_dir), str(job_dir), "bind")
    user = f"{job_dir.stat().st_uid}:{job_dir.stat().st_gid}"
    command = ["python3", "-c", SWAPS, str(job_dir), str(trap)]
    container = engine.client().containers.run(
        engine.base_image, command, detach=True, mounts=[mount], user=user, init=True
    )
    try:
        printed = (line.decode() for line in container.logs(stream=True))
        yield list(islice(printed, 3))
        container.reload()
        assert container.status == "running", container.logs()
    finally:
        container.remove(force=True)


def test_job_dir_that_is_replaced_while_jobs_start_leads_nowhere(
    service: AttackedService, engine: Engine, tmp_path: Path
) -> None:
    """The agent is killed as well, while one of them starts."""
    victim = state_of(engine, job="p/victim")
    trap = tmp_path / "trap"
    trap.mkdir()
    trap.chmod(0o777)
    (trap / "secret").touch(0o600)
    swapped = service.jobs / "p" / "mallory" / "swapped"
    ends = []
    service.submit("mallory", "first", **image(engine, NEXT, jobDir=str(swapped / "next")))
    assert service.end("mallory", "first")["state"] == "SUCCEEDED"
    with swapping(engine, swapped, trap) as printed:
        assert [line.split()[0] for line in printed] == ["kept", "kept", "swapping"]
        for number in range(3):
            job = f"next_{number}"
            service.submit("mallory", job, **image(engine, NEXT, jobDir=str(swapped / "next")))
            if number == 1:
                service.until(partial(service.is_placed, "mallory", job))
                service.kill_agent()
                service.start_agent()
            ended = service.end("mallory", job)
            ends.append(ended.get("errorMessage") or service.log("mallory", job)[-1])

    known = ("The job-dir ", "is a link to", "wrote [", "failed [Errno")  # refused, or confined
    assert [end for end in ends if not any(words in end for words in known)] == []
    assert [path.name for path in trap.iterdir()] == ["secret"]
    assert {path.stat().st_uid for path in (trap, trap / "secret")} == {0}
    assert (service.jobs / "p" / "alice" / "victim" / "model").read_text() == "alice's"
    assert state_of(engine, job="p/victim") == victim
    assert service.job("alice", "victim")["state"] == "RUNNING"
