"""A real Slurm behind a real server and agent: docs/how-to/slurm.md as a test."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.installed import apptainer
from beds.registry import Registry
from beds.slurm import SlurmBed
from beds.token_files import long_token
from beds.waiting import until
from e2e.harness import RemoteService
from e2e.test_training import check_trained, predict, template
from support.addresses import free_ports
from trainyard_cli.submission.upload import ensure_bucket
from trainyard_protocol.states import Reason

pytestmark = pytest.mark.e2e

GANG = """
import json, os, signal, socket, sys, time
if sys.argv[1] == "limited":  # saves a step when it is told to, and needs four lives to reach the last one
    path = sys.argv[2]
    step = int(open(path).read()) if os.path.exists(path) else 0
    if step == 3:
        sys.exit(0)

    def save(*_):
        open(path, "w").write(str(step + 1))
        print(json.dumps({"event": "checkpoint", "step": step + 1}), flush=True)
        sys.exit(143)

    signal.signal(signal.SIGTERM, save)
    print(json.dumps({"event": "progress", "step": step + 1}), flush=True)
    while True:
        time.sleep(1)
config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
addresses = [address for group in cluster.values() for address in group]
host, port = cluster[task["type"]][task["index"]].rsplit(":", 1)
listening = socket.create_server(("", int(port)))
for address in addresses:
    name, _, number = address.rpartition(":")
    while True:
        try:
            socket.create_connection((name, int(number)), timeout=5).close()
            break
        except OSError:
            time.sleep(0.05)
print("met", len(set(addresses)), "at", os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"].isdecimal(), flush=True)
how = sys.argv[1]
if how != "end":
    time.sleep(1000)
if task["type"] == "chief":
    time.sleep(1)
else:
    time.sleep(1000)
"""


class SlurmService(RemoteService):
    """A server, and an agent on the login node of a Slurm."""

    def __init__(self, root: Path) -> None:
        (port,) = free_ports(1)
        self.storage = f"http://127.0.0.1:{port}/{long_token('gcs')}"
        types = {f"node-{n}": {"family": "site", "vcpus": n, "memoryGb": n} for n in (2, 3)}
        allowed = {"slurm": {"constraint": ["only-n3"], "setup": "*"}}
        super().__init__(root, "--one-user", machine_types={"machineTypes": types, "engineOptions": allowed})
        gcs = ("--data-dir", str(root / "gcs"), "--port", str(port), "--secret-file", str(self.token("gcs")))
        self.spawn("storage", sys.executable, "-m", "trainyard_storage.emulator", *gcs)
        self.start_agent()

    def start_agent(self, *further: str) -> None:
        where = ("--one-user", "--shared-dir", str(self.root / "shared"), "--runtime", "slurm")
        self.agent(*where, "--replica-env", f"STORAGE_EMULATOR_HOST={self.storage}", *further)

    def restart_agent(self, *further: str) -> None:
        self.end("agent")
        self.start_agent(*further)

    def submit(self, job: str, how: str, workers: int = 3) -> None:
        self.config(scaleTier="CUSTOM", masterType="node-2", workerType="node-2", workerCount=workers)
        package = ("--package-path", "prog", "--config", "config.yaml")
        self.ok("jobs", "submit", "training", job, *package, "--", how)


@pytest.fixture(scope="module")
def cluster(slurm: SlurmBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmService]:
    with SlurmService(tmp_path_factory.mktemp("slurm")).ending() as service:
        service.program(GANG)
        yield service
    assert slurm.run("squeue", "-h", "-t", "PENDING,RUNNING") == ""


def test_digits_are_trained_over_three_nodes_with_two_machine_types(cluster: SlurmService, slurm: SlurmBed) -> None:
    """No node holds two of its replicas. The nodes share no job-dir, but the storage emulator."""
    shape = {"masterType": "node-2", "workerType": "node-3", "workerCount": 2}
    copy = template(cluster, **shape, jobDir="gs://models/digits")
    ensure_bucket("gs://models", cluster.storage, print)
    output = cluster.train("digits", "--config", "config.yaml", "--", "--epochs", "5", cwd=copy)

    check_trained(output, 3)
    explained = json.loads(cluster.ok("jobs", "explain", "digits", "-o", "json"))["environment"]
    addresses = json.loads(explained["TF_CONFIG"])["cluster"]
    assert {kind: len(several) for kind, several in addresses.items()} == {"chief": 1, "worker": 2}
    assert all(address.rpartition(":")[2].isdecimal() for several in addresses.values() for address in several)
    predict(cluster, "gs://models/digits", STORAGE_EMULATOR_HOST=cluster.storage)


@pytest.mark.long
def test_gang_over_two_nodes_trains_while_the_next_one_waits(cluster: SlurmService, slurm: SlurmBed) -> None:
    cluster.submit("first", "run")
    cluster.wait_for("first", "RUNNING")
    until(lambda: cluster.log("first").count("met 4 at") == 4, "all to meet")
    nodes = slurm.run("squeue", "-h", "-t", "RUNNING", "-o", "%D").strip()
    assert nodes == "2"
    slurm.run("sbatch", "-N1", "--exclusive", "--wrap", "sleep 1000", "-o", "/dev/null", "-J", "others")

    cluster.submit("second", "end", workers=1)
    waiting = "in Slurm's queue: "
    until(lambda: waiting in cluster.ok("jobs", "why", "second"), "the reason of Slurm")

    slurm.run("scancel", "--name=others")
    cluster.wait_for("second", "SUCCEEDED")
    cluster.ok("jobs", "cancel", "first")
    cluster.wait_for("first", "CANCELLED")


@pytest.mark.long
def test_job_has_what_it_asks_of_slurm_and_is_refused_what_is_not_allowed(cluster: SlurmService) -> None:
    (cluster.work / "asks.py").write_text("import os\nprint(os.environ['MODULE'])\n")
    config = cluster.config("script.yaml", scaleTier="CUSTOM", masterType="node-2", pythonModule=None)
    package = ("--package-path", "asks.py", "--config", str(config))
    submit = ("jobs", "submit", "training", "asks", *package, "--stream-logs")
    setup = ("--engine-option", "slurm.setup=export MODULE=cuda-$SLURMD_NODENAME")
    refused = cluster.run(*submit, *setup, "--engine-option", "slurm.qos=top")
    assert (
        "--engine-option: 'top' is not allowed here; nothing is allowed (engineOptions.slurm.qos in" in refused.stderr
    )
    done = cluster.done(*submit, *setup, "--engine-option", "slurm.constraint=only-n3")
    assert "cuda-n3" in done.stdout + done.stderr


@pytest.mark.long
def test_code_is_synchronised_to_the_node_of_the_primary_and_the_gang_ends_when_that_is_idle(
    cluster: SlurmService,
) -> None:
    code = cluster.work / "waits"
    code.mkdir()
    (code / "train.py").write_text("print('on the node')\n")
    config = cluster.config("waits.yaml", scaleTier="CUSTOM", pythonModule=None, masterType="node-2")
    worker = ("--worker-machine-type", "node-2", "--worker-count", "1")
    done = cluster.done("jobs", "dev", "waits", "--config", str(config), *worker, "--idle", "20s", cwd=code)
    assert "Synchronised 1 files, 1 of them changed: " in done.stderr
    run = ("sh", "-c", "cd trainyard-dev/code && python train.py")
    assert cluster.ok("jobs", "exec", "waits", "--", *run) == "on the node\n"
    cluster.wait_for("waits", "SUCCEEDED")
    log = cluster.log("waits")
    assert "Nothing used it for 20 s: it ends." in log
    assert "It waits for the end of the primary." in log


@pytest.mark.long
def test_job_with_an_image_runs_in_it_by_apptainer(cluster: SlurmService, tmp_path: Path) -> None:
    config = cluster.config("image.yaml", scaleTier="CUSTOM", masterType="node-2", pythonModule=None)
    submit = ("jobs", "submit", "training", "--config", str(config))
    script = 'echo "$TF_CONFIG"; cat only-here; sleep 1000'
    cluster.restart_agent("--slurm-images", apptainer.needed_program(tmp_path / "bin"))
    try:
        with Registry.start() as registry:
            image = apptainer.put_tiny(registry)
            job = (*submit, "imaged", "--master-image-uri", image, "--", script)
            until(lambda: cluster.run(*job).returncode == 0, "the server to know that its agent runs images")
            cluster.wait_for("imaged", "RUNNING")
            until(lambda: "of the image" in cluster.log("imaged"), "its line")
            assert '"type": "master"' in cluster.log("imaged")
            assert cluster.ok("jobs", "exec", "imaged", "--", "cat", "only-here") == "of the image\n"
            cluster.ok("jobs", "cancel", "imaged")
            cluster.wait_for("imaged", "CANCELLED")

            cluster.ok(*submit, "missing", "--master-image-uri", f"{registry.address}/none:1")
            cluster.wait_for("missing", "FAILED")
            assert "none:1: image not found (" in cluster.value("missing", "errorMessage")
    finally:
        cluster.restart_agent()


@pytest.mark.long
def test_job_that_reaches_its_partitions_time_limit_again_and_again_succeeds(
    cluster: SlurmService, tmp_path: Path
) -> None:
    """Slurm's SIGTERM comes up to a minute before the limit, so each program ends by itself, and its job as well. On a
    busy machine it comes before a program can save its step: such a run costs a retry."""
    cluster.restart_agent("--slurm-partition", "brief")
    try:
        cluster.config(scaleTier="CUSTOM", masterType="node-2")
        package = ("--package-path", "prog", "--config", "config.yaml")
        step = str(tmp_path / "step")
        cluster.ok("jobs", "submit", "training", "limited", *package, "--", "limited", step)
        cluster.wait_for("limited", "SUCCEEDED", "FAILED", timeout=500)
        with cluster.client() as client:
            detail = client.detail("limited")
    finally:
        cluster.restart_agent()
    *limited, last = [run.verdict for run in detail.runs]
    assert last is not None
    assert last.reason is Reason.COMPLETED
    retries = [event.message for event in detail.events if "(retry " in event.message]
    assert len(limited) - len(retries) == 3, detail.events
    for verdict in limited:
        assert verdict is not None
        assert verdict.reason is Reason.TIME_LIMIT
        assert "reached a time limit. Slurm ended its job at the time limit of 1:00 in the partition brief" in (
            verdict.message
        )
