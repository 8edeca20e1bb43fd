"""Google's own clients after `trainyard connect google`, by name and without an edit; and what `disconnect` leaves.

Names are in a hosts file of the tests' own, which a mount namespace has in place of /etc/hosts.
"""

import json
import os
import re
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import googleapiclient
import pytest

from beds.certificates import Authority
from beds.engines import Engine
from beds.installed import google_clients
from beds.installed.missing import needing, skip_without
from beds.programs import Programs
from beds.token_files import long_token, write_token
from e2e.harness import Service, started
from trainyard_protocol.answers.google import names_of
from trainyard_protocol.errors import NotFound
from trainyard_server.capabilities.google.vertex_collections import refusal

pytestmark = [pytest.mark.long, pytest.mark.e2e]

HERE = Path(__file__).parent
PROGRAMS = HERE.parents[1] / "programs" / "clients"
DOCUMENT = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents" / "ml.v1.json"
_STORE = """
from google.cloud import storage
blob = storage.Client().bucket("b").blob("o")
blob.upload_from_string("mine")
print(blob.download_as_text())
"""
_LIST = """
from googleapiclient import discovery
jobs = discovery.build("ml", "v1").projects().jobs()
print(jobs.list(parent="projects/local").execute())
"""
_ELSEWHERE = """
ip link set lo up
ip address add 10.77.0.5/32 dev lo
mount --bind hosts /etc/hosts
"$PYTHON" -m trainyard_server --data-dir data --host 10.77.0.5 --port 8470 --token-file admin:ann=operator \
    --tls-cert "$CERTIFICATE" --tls-key "$KEY" --google-port 8472 --google-domain trains.test 2> server.log &
trap 'kill $!; wait $!; cat server.log >&2' EXIT
tries=0
until "$PYTHON" -c 'import socket; socket.create_connection(("10.77.0.5", 8470))' 2> /dev/null; do
    tries=$((tries + 1)); test $tries -lt 600; sleep 0.1
done
set -- google --server https://trains.test:8470 --token-file operator --ca-file "$CA"
! trainyard connect "$@"
umount /etc/hosts
mount --bind names /etc/hosts
trainyard connect "$@"
(. .local/state/trainyard/google/env && "$PYTHON" list.py)
trainyard disconnect "$@"
"""
_CUSTOM_PROGRAM = """
import json, os, sys, time
task = json.loads(os.environ["CLUSTER_SPEC"])["task"]
print(task["type"], task["index"], os.environ["GREETING"], *sys.argv[1:], flush=True)
assert "--fail" not in sys.argv, "as asked"
if "--die" in sys.argv:
    os.kill(os.getpid(), 9)
time.sleep(600 * ("--wait" in sys.argv))
"""
_TUNED_PROGRAM = """
import argparse, json, os, sys, time
assert "--fail" not in sys.argv, "as asked"
time.sleep(600 * ("--wait" in sys.argv))
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, required=True)
parser.add_argument("--layers", type=int, required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--optimizer", choices=["adam", "sgd"], required=True)
parser.add_argument("--momentum", type=float)
parser.add_argument("--epochs", type=int, default=3)
given = parser.parse_args()
assert (given.momentum is not None) == (given.optimizer == "sgd"), given
assert json.loads(os.environ["CLUSTER_SPEC"])["task"] == {
    "type": "workerpool0", "index": 0, "trial": os.environ["CLOUD_ML_TRIAL_ID"]
}
print("to", os.environ.get("AIP_MODEL_DIR"))
os.makedirs(os.path.dirname(os.environ["CLOUD_ML_HP_METRIC_FILE"]), exist_ok=True)
with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "a") as file:  # as cloudml-hypertune writes it
    for step, value in enumerate((0.5, 0.75, given.rate / 10), 1):
        metric = {"timestamp": time.time(), "trial": os.environ["CLOUD_ML_TRIAL_ID"], "accuracy": str(value)}
        print(json.dumps(metric | {"global_step": str(step), "checkpoint_path": ""}), file=file)
"""
OTHERS = {
    "container": (501, "Vertex AI's trainingPipelines are not offered here: CustomTrainingJob, "),
    "upload": (501, "Vertex AI's models are not offered here: there is no model registry. "),
    "tensorboard of a job": (400, "Field: custom_job.job_spec.tensorboard Error: is not supported: "),
    "tpu": (400, "Field: custom_job.job_spec.worker_pool_specs[0].machine_spec.accelerator_type Error: is required"),
    "labels": (400, "Field: custom_job.labels Error: has the key 'Team'; a key starts with a lower-case letter"),
    "s3": (400, "Field: custom_job.job_spec.base_output_directory.output_uri_prefix Error: must be gs://BUCKET/"),
}
"""Calls of Vertex AI's client, and how the answer begins."""
_INSIDE = 'mount --bind "$0" /etc/hosts && . "$1" && shift && exec "$@"'


class Machine:
    """A local service, with a home directory and a hosts file of its own."""

    def __init__(self, service: Service, root: Path) -> None:
        self.service = service
        self.home = root / "home"
        (self.home / ".config").mkdir(parents=True)
        (self.home / ".profile").write_text("mine\n")
        self.hosts = root / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        service.environment |= {"HOME": str(self.home)}
        for name in ("CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS"):
            service.environment.pop(name, None)

    def run(self, *words: str, connected: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program; `connected`: with the variables that `connect` wrote."""
        variables = self.service.state_dir / "google" / "env" if connected else Path("/dev/null")
        inside = ["unshare", "--mount", "sh", "-c", _INSIDE, str(self.hosts), str(variables)]
        return subprocess.run(
            [*inside, *words],
            env=self.service.environment,
            cwd=self.service.work,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    def ok(self, *words: str, connected: bool = True) -> str:
        done = self.run(*words, connected=connected)
        assert done.returncode == 0, f"{words} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def snapshot(self) -> dict[str, tuple[int, str]]:
        """Every file outside the state directory that a command could have changed."""
        paths = [self.hosts, *self.home.rglob("*")]
        return {
            str(path): (stat.S_IMODE(path.stat().st_mode), path.read_text() if path.is_file() else "") for path in paths
        }


def _may_mount() -> bool:
    command = ["unshare", "--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _require_mounts() -> None:
    if not _may_mount():
        skip_without("needs a hosts file of its own: a mount namespace")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yield from _machine(tmp_path_factory.mktemp("machine"), {})


@pytest.fixture
def machine_with_engine(engine: Engine, tmp_path: Path) -> Iterator[Machine]:
    """Its runtime 2.15 is an image with Python alone."""
    table = tmp_path / "runtimes.yaml"
    table.write_text(f"images: {{plain: {{image: '{engine.base_image}'}}}}\nversions: {{'2.15': {{cpu: plain}}}}\n")
    yield from _machine(tmp_path, engine.environment, "--runtimes", str(table))


@pytest.fixture
def machine_with_processes(tmp_path: Path) -> Iterator[Machine]:
    """Its runtime 2.15 has no framework: processes have the agent's Python."""
    table = tmp_path / "runtimes.yaml"
    table.write_text("images: {plain: {image: none}}\nversions: {'2.15': {cpu: plain}}\n")
    yield from _machine(tmp_path, {"DOCKER_HOST": "unix:///nowhere"}, "--runtimes", str(table))


def _machine(root: Path, environment: dict[str, str], *flags: str) -> Iterator[Machine]:
    _require_mounts()
    for service in started(root, *flags, runtime="auto", environment=environment):
        yield Machine(service, root)


def test_bundled_client_calls_every_method_and_trains_by_name_as_pipelines_do(machine: Machine) -> None:
    before = machine.snapshot()
    token = machine.service.state_dir / "token"
    with machine.service.client() as client:
        address = client.server.url
    program = [sys.executable, str(HERE / "google_methods.py")]
    plain = json.loads(machine.ok(*program, address, str(token), connected=False))
    machine.ok("trainyard", "connect", "google", connected=False)
    named = json.loads(machine.ok(*program))
    assert named["answers"] == plain["answers"]
    assert {name: answer[0] for name, answer in named["answers"].items() if isinstance(answer, list)} == {
        "create again": 409,
        "operation": 404,
        "cancel operation": 404,
        "operation there": 404,
        "cancel operation there": 404,
    }
    assert set(named["called"]) == _methods_of_training()
    _pipelines_component_trains(machine)
    assert machine.ok(sys.executable, "-c", _STORE) == "mine\n"
    keys = machine.service.state_dir / "server" / "keys"
    files = [*(machine.service.state_dir / "google").iterdir(), *keys.iterdir()]
    assert [path.name for path in files if path.is_file() and path.stat().st_mode & 0o077] == []
    first = machine.service.work / "first.json"
    first.write_text((machine.service.state_dir / "google" / "key.json").read_text())
    machine.ok("trainyard", "connect", "google", connected=False)  # again: the same, with a new key
    # As in a shell that was there before.
    running = machine.ok("env", f"GOOGLE_APPLICATION_CREDENTIALS={first}", sys.executable, "-c", _LIST)
    assert "by_name" in running
    machine.ok("trainyard", "disconnect", "google", connected=False)
    audit = ("trainyard", "audit", "list", "--format", "value(subject)", "--action")
    made, revoked = (
        sorted(machine.ok(*audit, f"google-keys.{done}", connected=False).split()) for done in ("create", "revoke")
    )
    assert (len(made), revoked) == (2, made)
    assert machine.snapshot() == before
    assert not (machine.service.state_dir / "google").exists()
    assert "were not connected" in machine.ok("trainyard", "disconnect", "google", connected=False)
    machine.service.wait_for("by_name", "CANCELLED", "FAILED")


def test_connect_without_the_right_to_change_the_hosts_file_says_what_root_does(machine: Machine) -> None:
    before = machine.snapshot()
    user = ("setpriv", "--bounding-set=-dac_override", "trainyard")  # the file is another's, and so not ours
    os.chown(machine.hosts, 65534, 65534)
    connected = machine.run(*user, "connect", "google", connected=False)
    assert (connected.returncode, machine.hosts.read_text()) == (0, before[str(machine.hosts)][1])
    assert "/etc/hosts cannot be changed: Permission denied." in connected.stderr
    _as_root(machine, connected.stderr)
    machine.ok(sys.executable, "-c", _LIST)  # by name
    _as_root(machine, machine.run(*user, "disconnect", "google", connected=False).stderr)
    assert machine.snapshot() == before


def _as_root(machine: Machine, printed: str) -> None:
    """Run the command of root that is printed."""
    line = next(line for line in printed.splitlines() if "sudo " in line)
    start = min(line.find(word) for word in ("printf ", "sudo ") if word in line)
    command = line[start:].replace("sudo ", "").replace("/etc/hosts", str(machine.hosts))
    subprocess.run(["sh", "-c", command], check=True)


def test_clients_of_another_machine_use_the_names_of_its_domain(tmp_path: Path) -> None:
    """In a network of its own, where the server has an address that is no loopback."""
    _require_mounts()
    authority = Authority(tmp_path)
    issued = authority.issue("trains.test")
    (tmp_path / "hosts").write_text("10.77.0.5 trains.test\n")
    (tmp_path / "names").write_text(f"10.77.0.5 trains.test {' '.join(names_of('trains.test'))}\n")
    operator = Programs(tmp_path)
    write_token(tmp_path / "operator", long_token("operator"))
    (tmp_path / "list.py").write_text(_LIST)
    files = {"CERTIFICATE": issued.certificate, "KEY": issued.key, "CA": authority.ca_file}
    operator.environment |= {name: str(file) for name, file in files.items()} | {"PYTHON": sys.executable}
    done = operator.done("unshare", "--mount", "--net", "sh", "-eu", "-c", _ELSEWHERE, timeout=300)
    assert "must be the address of https://trains.test:8470 in your name service" in done.stderr
    lines = done.stdout.splitlines()
    assert "{}" in lines
    assert lines[-1].startswith("Google's clients are disconnected.")
    assert (tmp_path / "hosts").read_text() == "10.77.0.5 trains.test\n"


def _methods_of_training() -> set[str]:
    """Methods of the discovery document: those of projects, jobs, locations and operations, without IAM."""
    projects = json.loads(DOCUMENT.read_text())["resources"]["projects"]
    inside = projects["resources"]
    groups = (inside["jobs"], inside["operations"], inside["locations"], inside["locations"]["resources"]["operations"])
    found = {method["id"] for group in groups for name, method in group["methods"].items() if "Iam" not in name}
    return {*found, projects["methods"]["getConfig"]["id"]}


def _pipelines_component_trains(machine: Machine) -> None:
    """The calls that the component makes, as its source has them."""
    source = 'import sys, time\nassert "--fail" not in sys.argv, "as asked"\ntime.sleep(600 * ("--wait" in sys.argv))'
    machine.service.program(source, "trainer")
    task, package = PROGRAMS / "pipelines_component.py", _sdist(machine.service.work)
    same, refused, failed, *rest = machine.ok(sys.executable, str(task), str(package)).splitlines()
    assert same == "same: True ('by_pipelines', 'gs://pipelines/by_pipelines')"
    assert refused == "refused: 409"
    assert failed.startswith("Job failed with state FAILED. Error: The replica master 0 exited with")
    assert rest[-1].startswith("Job failed with state CANCELLED. Error: ")


def _packages(client: str) -> Path:
    with needing(google_clients.NoClients):
        return google_clients.packages(client)


@pytest.mark.clients
@pytest.mark.frameworks  # tensorflow_cloud imports TensorFlow
def test_airflow_and_tensorflow_cloud_train_without_an_edit(machine: Machine, frameworks_python: Path) -> None:
    airflow, cloud = _packages("airflow"), _packages("tensorflow_cloud")
    machine.service.program('print("trained by", __name__)', "trainer")
    package = _sdist(machine.service.work)
    machine.ok("trainyard", "connect", "google", connected=False)
    try:
        settings = {
            "AIRFLOW_HOME": str(machine.service.root / "airflow"),
            "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": "google-cloud-platform://",
            "PYTHONPATH": str(airflow),
        }
        plain = Path(sys.base_prefix) / "bin" / "python3"
        task = PROGRAMS / "airflow_training.py"
        machine.ok("env", *_assigned(settings), str(plain), str(task), str(package))
        assert machine.service.state("by_airflow") == "SUCCEEDED"
        assert "trained by __main__" in machine.service.log("by_airflow")
        settings = {"PYTHONPATH": str(cloud), "TF_CPP_MIN_LOG_LEVEL": "3"}
        task = PROGRAMS / "tensorflow_cloud_job.py"
        printed = machine.ok("env", *_assigned(settings), str(frameworks_python), str(task))
        names = dict(line.split() for line in printed.splitlines() if line.startswith(("alone ", "tpu ")))
        with machine.service.client() as client:
            alone, tpu = (client.get_job(names[kind]) for kind in ("alone", "tpu"))
            for name in names.values():
                client.cancel_job(name)
        assert (alone["labels"], alone["trainingInput"]["args"]) == ({"a": "b"}, ["--epochs", "1"])
        assert alone["trainingInput"]["scaleTier"] == "CUSTOM"
        assert tpu["trainingInput"]["workerType"] == "cloud_tpu"
    finally:
        machine.ok("trainyard", "disconnect", "google", connected=False)


@pytest.mark.clients
@pytest.mark.frameworks  # TFX imports TensorFlow
def test_tfx_trains_in_a_container_without_an_edit(
    machine_with_engine: Machine, engine: Engine, frameworks_python: Path
) -> None:
    machine, service = machine_with_engine, machine_with_engine.service
    packages = os.pathsep.join(str(_packages(client)) for client in ("tfx", "tensorflow_cloud"))
    recipe = (
        f"FROM {engine.base_image}\nCOPY run_executor.py /tfx/scripts/\n"
        "RUN ln -s /usr/bin/python3 /usr/bin/python\nENV PYTHONPATH=/\n"
    )
    files = {"run_executor.py": (PROGRAMS / "tfx_executor.py").read_bytes()}
    image = engine.build("trainyard-test/tfx:1", recipe, files)
    try:
        machine.ok("trainyard", "connect", "google", connected=False)
        settings = {"PYTHONPATH": packages, "TF_CPP_MIN_LOG_LEVEL": "3"}
        task = PROGRAMS / "tfx_training.py"
        printed = machine.ok("env", *_assigned(settings), str(frameworks_python), str(task), image)
        assert service.state("by_tfx") == "SUCCEEDED"
        log = service.log("by_tfx")
        assert "trained by tfx.components.trainer.executor.GenericExecutor" in log
        assert "from gs://tfx/examples to gs://tfx/model" in log
        assert "failed: Job 'projects/local/jobs/fails_by_tfx' did not succeed." in printed
        with service.client() as client:
            labels = client.get_job("by_tfx")["labels"]
        assert (labels["team"], labels["tfx_version"]) == ("a", "1-21-0")
    finally:
        machine.ok("trainyard", "disconnect", "google", connected=False)
        engine.client().images.remove(image, force=True)


@pytest.mark.clients
def test_vertex_client_runs_lists_cancels_and_deletes_custom_jobs_and_is_told_of_the_rest(
    machine_with_engine: Machine, engine: Engine
) -> None:
    machine, service = machine_with_engine, machine_with_engine.service
    service.program(_CUSTOM_PROGRAM, "trainer")
    package = _sdist(service.work)
    machine.ok("trainyard", "connect", "google", connected=False)
    try:
        task = PROGRAMS / "vertex_custom_jobs.py"
        plain = Path(sys.base_prefix) / "bin" / "python3"
        path = f"PYTHONPATH={_packages('vertex')}"
        seen = json.loads(
            machine.ok("env", path, str(plain), str(task), str(package), engine.base_image).splitlines()[-1]
        )
        assert seen["states"] == ["JOB_STATE_SUCCEEDED"] * 3
        assert seen["failed"].startswith('Job failed with:\ncode: 3\nmessage: "The replica workerpool0-0 exited with')
        assert "AssertionError: as asked" in seen["failed"]
        at = "custom_job.job_spec.worker_pool_specs[0].machine_spec.machine_type"
        assert f"Field: {at} Error: 'n1-standard-5' is not a machine type" in seen["refused"]
        assert seen["cancelled"] == 'Job failed with:\ncode: 1\nmessage: "The job was cancelled by the user."\n'
        assert seen["listed"] == ["dies", "fails", "in a container", "script", "trains"]
        assert seen["pools"] == [[1, "n1-standard-4"], [1, "n1-standard-4"]]
        assert "It was deleted on" in seen["deleted"]
        wrong = {
            name: seen["others"].get(name)
            for name, (code, begin) in OTHERS.items()
            if seen["others"][name][0] != code or not seen["others"][name][1].startswith(begin)
        }
        assert not wrong
        names = seen["names"]
        with service.client() as client:
            runs = client.detail(names["dies"]).runs
        assert (len(runs), "SIGKILL" in seen["died"]) == (1, True)
        assert "workerpool0 0 hello --epochs 1" in service.log(names["trains"])
        assert "script ['--epochs', '1'] gs://vertex/aiplatform-custom-job-" in service.log(names["script"])
        assert 'in a container: {"cluster": {"workerpool0":' in service.log(names["in a container"])
    finally:
        machine.ok("trainyard", "disconnect", "google", connected=False)


@pytest.mark.clients
def test_vertex_client_tunes_on_processes(machine_with_processes: Machine) -> None:
    _tunes(machine_with_processes)


@pytest.mark.clients
def test_vertex_client_tunes_in_containers(machine_with_engine: Machine, engine: Engine) -> None:
    files = {"t.py": _TUNED_PROGRAM.encode()}
    image = engine.build("trainyard-test/tuned:1", f"FROM {engine.base_image}\nCOPY t.py /\n", files)
    try:
        _tunes(machine_with_engine, image)
    finally:
        engine.client().images.remove(image, force=True)


def _tunes(machine: Machine, *images: str) -> None:
    """Vertex AI's client tunes with a package, and with images."""
    service = machine.service
    service.program(_TUNED_PROGRAM, "trainer")
    package = _sdist(service.work)
    machine.ok("trainyard", "connect", "google", connected=False)
    try:
        task = PROGRAMS / "vertex_tuning_jobs.py"
        plain = Path(sys.base_prefix) / "bin" / "python3"
        path = f"PYTHONPATH={_packages('vertex')}"
        seen = json.loads(machine.ok("env", path, str(plain), str(task), str(package), *images).splitlines()[-1])
        best, last = seen["packaged"], seen.get("in an image")
        assert best["state"] == "JOB_STATE_SUCCEEDED"
        assert [trial["id"] for trial in best["trials"]] == ["1", "2", "3", "4"]
        for trial in best["trials"]:
            assert (trial["state"], trial["step"], trial["metrics"]) == ("SUCCEEDED", 2, {"accuracy": 0.75})
            assert trial["custom_job"] == f"packaged trial {trial['id']}"
            assert ("momentum" in trial["parameters"]) == (trial["parameters"]["optimizer"] == "sgd")
        if images:
            assert [trial["step"] for trial in last["trials"]] == [3, 3]
            for trial in last["trials"]:
                assert trial["metrics"]["accuracy"] == pytest.approx(trial["parameters"]["rate"] / 10)
        assert seen["failed"].startswith("Job failed with:\ncode: 3\nmessage: ")
        assert "AssertionError: as asked" in seen["failed"]
        assert "Field: hyperparameter_tuning_job.study_spec.metrics Error: must have one metric" in seen["refused"]
        assert seen["cancelled"] == 'Job failed with:\ncode: 1\nmessage: "The job was cancelled by the user."\n'
        assert seen["listed"] == ["fails", *reversed(list(seen["names"]))]
        assert seen["got"] == ["packaged", 4, 4]
        assert "It was deleted on" in seen["deleted"]
        log = service.log(f"{seen['names']['packaged']}.2")
        assert re.search(r"to gs://vertex-tuning/aiplatform-custom-job-\S+/2/model/", log)
    finally:
        machine.ok("trainyard", "disconnect", "google", connected=False)


@pytest.mark.clients
def test_every_collection_of_vertex_client_is_here_or_has_a_sentence() -> None:
    """The collections of its REST transports, in both versions."""
    path = re.compile(r"locations/\*\}?/([A-Za-z]+)")
    transports = _packages("vertex").glob("google/cloud/aiplatform_v1*/services/*/transports/rest_base.py")
    named = {name for file in transports for name in path.findall(file.read_text())}
    assert len(named) > 40
    assert {name for name in named if isinstance(refusal(name), NotFound)} == set()


def _assigned(variables: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def _sdist(directory: Path) -> Path:
    """The package `trainer` of the directory, as `python setup.py sdist` makes it."""
    package = directory / "trainer-1.tar.gz"
    (directory / "setup.py").write_text(
        'from setuptools import setup\nsetup(name="trainer", version="1", packages=["trainer"])\n'
    )
    with tarfile.open(package, "w:gz") as archive:
        for name in ("setup.py", "trainer/__init__.py", "trainer/task.py"):
            archive.add(directory / name, f"trainer-1/{name}")
    return package
