"""Programs of TensorFlow and torch (tests/programs), unchanged and without a line about this service in them."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from beds.engines import Engine
from beds.token_files import write_token
from beds.waiting import until
from e2e.harness import REPOSITORY, Service, local, started
from e2e.programs.test_programs import PROGRAMS, curves, name, printed, submit
from support.addresses import free_ports
from trainyard_cli.local.state import LocalState

ON_TWO: dict[str, tuple[str, ...]] = {
    "keras_digits.py": ("accuracy", "loss", "val_accuracy", "val_loss"),
    "torch_tqdm.py": ("loss",),
    "mirrored.py": ("loss",),
    "torch_ddp.py": ("loss",),
}
IN_A_CONTAINER = """
import os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["TRAINYARD_JOB_DIR"])  # where this machine has TensorFlow
import tensorflow as tf
with tf.io.gfile.GFile(sys.argv[1], "w") as file:
    file.write("by TensorFlow")
print(tf.io.gfile.GFile(sys.argv[1]).read(), tf.io.gfile.glob(os.path.dirname(sys.argv[1]) + "/*"))
"""
PS = {"parameterServerType": "local-1", "parameterServerCount": 1}

pytestmark = [pytest.mark.e2e, pytest.mark.frameworks]


@pytest.fixture(scope="module")
def today(frameworks_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with today's TensorFlow and torch."""
    yield from started(tmp_path_factory.mktemp("frameworks"), "--python", str(frameworks_python))


@pytest.fixture(scope="module")
def then(estimators_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the TensorFlow that stands in for those of AI Platform."""
    yield from started(tmp_path_factory.mktemp("estimators"), "--python", str(estimators_python))


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Service]:
    """A service without an option: its agent's Python has no TensorFlow, and some of the packages that TensorFlow
    needs."""
    yield from started(tmp_path)


def submit_with(service: Service, program: str, *words: str, **training_input: Any) -> str:
    config = service.config(f"{name(program)}.yaml", pythonModule=None, **training_input)
    path = str(PROGRAMS / program)
    command = ("jobs", "submit", "training", name(program), "--config", str(config), "--package-path", path)
    done = service.run(*command, *words)
    assert done.returncode == 0, done.stderr
    return done.stderr


def succeeded(service: Service, program: str) -> dict[str, list[str]]:
    """The lines of each replica of a job that has succeeded."""
    state = service.wait_for(name(program), "SUCCEEDED", "FAILED", timeout=500)
    lines = printed(service, program)
    assert state == "SUCCEEDED", lines
    return lines


def test_programs_run_on_a_chief_and_a_worker_with_curves_and_as_one_cluster(today: Service) -> None:
    submit(today, *ON_TWO)
    lines = {program: succeeded(today, program)["master-replica-0"] for program in ON_TWO}
    assert {program: curves(today, program) for program in ON_TWO} == ON_TWO
    assert "2 replicas in sync" in lines["mirrored.py"]
    assert "2 ranks, equal: True" in lines["torch_ddp.py"]


def test_coordinator_trains_with_parameter_servers_where_each_replica_has_one_cpu(today: Service) -> None:
    example = yaml.safe_load((REPOSITORY / "configs" / "parameter-servers.yaml").read_text())["trainingInput"]
    for field in ("pythonModule", "runtimeVersion"):  # a script; the service's Python has TensorFlow
        del example[field]
    submit_with(today, "parameter_servers.py", **example | local(workers=1, **PS))
    lines = succeeded(today, "parameter_servers.py")["master-replica-0"]
    assert any(line.startswith("variables on /job:ps/replica:0/task:0") for line in lines)


def test_program_with_cloudml_hypertune_alone_reports_the_metric_of_its_trials(today: Service) -> None:
    program = str(PROGRAMS / "tuned.py")
    today.ok(
        *("jobs", "submit", "training", "tuned", "--package-path", program, "--metric", "accuracy"),
        *("--sweep", "momentum=0.25,0.3", "--scale-tier", "custom", "--master-machine-type", "local-1"),
    )
    assert today.wait_for("tuned", "SUCCEEDED", "FAILED", timeout=300) == "SUCCEEDED"
    job = json.loads(today.ok("jobs", "describe", "tuned", "-o", "json"))
    trials = job["trainingOutput"]["trials"]
    assert [trial["hyperparameters"] for trial in trials] == [{"momentum": "0.3"}, {"momentum": "0.25"}]
    assert [one["trainingStep"] for one in trials[0]["allMetrics"]] == ["1", "2", "3"]
    assert trials[0]["finalMetric"]["objectiveValue"] == pytest.approx(0.9)


def test_estimator_trains_with_a_parameter_server_and_is_evaluated(then: Service) -> None:
    gang = local(workers=1, **PS, evaluatorType="local-1", evaluatorCount=1)
    job_dir = then.root / "estimator"
    words = ("--job-dir", str(job_dir), "--pass-job-dir", "--runtime-version", "2.11")
    assert "TensorFlow 2.15 stands in" in submit_with(then, "estimator.py", *words, **gang)
    lines = succeeded(then, "estimator.py")
    assert "chief 0: 2 workers" in lines["master-replica-0"]
    steps = [int(path.stem.rpartition("-")[2]) for path in job_dir.glob("model.ckpt-*.index")]
    assert max(steps) >= 200  # chief and worker count together: one may take a step behind the other's last
    assert any("Saving dict for global step" in line for line in lines["evaluator-replica-0"])


def test_program_of_the_tutorial_trains_on_a_chief_and_a_worker_and_saves_to_gs_by_tensorflow(then: Service) -> None:
    config = then.config("cassava.yaml", pythonModule="trainer.task", **local(workers=1), runtimeVersion="2.11")
    then.ok(
        *("jobs", "submit", "training", "cassava", "--config", str(config), "--job-dir", "gs://pictures/cassava"),
        *("--package-path", str(PROGRAMS / "cassava" / "trainer"), "--", "--epochs", "1"),
    )
    succeeded(then, "cassava")
    with httpx.Client(trust_env=False, timeout=60) as client:
        objects = client.get(f"{LocalState(then.state_dir).storage_url()}/storage/v1/b/pictures/o").json()
    names = {one["name"] for one in objects["items"]}
    assert {"cassava/saved_model.pb", "cassava/variables/variables.index"} <= names
    assert "workertemp_0/cassava/saved_model.pb" in names


def test_script_of_one_line_imports_the_tensorflow_of_its_runtime_version_without_an_option(plain: Service) -> None:
    script = plain.root / "one_line.py"
    script.write_text("import tensorflow\n")
    config = plain.config("one_line.yaml", pythonModule=None, runtimeVersion="2.11", **local())
    command = ("jobs", "submit", "training", "one_line", "--config", str(config))
    plain.ok(*command, "--package-path", str(script))
    succeeded(plain, "one_line.py")


@pytest.mark.containers
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the base image has Python 3.11")
def test_tensorflow_of_an_image_reads_and_writes_gs_here_and_through_a_front(
    engine: Engine, estimators_python: Path, tmp_path: Path
) -> None:
    packages = next(estimators_python.parents[1].glob("lib/python3.*/site-packages"))
    # A container that is root's leaves the owners of the packages as they are.
    flags = ("--container-user", "image")
    for service in started(tmp_path, *flags, runtime="auto", environment=engine.environment):
        assert "by TensorFlow ['gs://words/in/a.txt']" in _train_in_image(service, engine, packages, "words")
        explained = json.loads(service.ok("jobs", "explain", "words", "-o", "json"))["environment"]
        assert explained["CURL_CA_BUNDLE"] == "/opt/trainyard/storage-roots.pem"
        with ExitStack() as stack:
            _join_with_front(service, stack, packages, *flags)
            trained = _train_in_image(service, engine, packages, "shared")
            assert "by TensorFlow ['gs://shared/in/a.txt']" in trained
            explained = json.loads(service.ok("jobs", "explain", "shared", "-o", "json"))["environment"]
            assert explained["STORAGE_EMULATOR_HOST"].endswith("/***")


def _train_in_image(service: Service, engine: Engine, packages: Path, bucket: str) -> str:
    command = ["python3", "-c", IN_A_CONTAINER]
    master = {"imageUri": engine.base_image, "containerCommand": command}
    master["containerArgs"] = [f"gs://{bucket}/in/a.txt"]
    config = service.config(pythonModule=None, jobDir=str(packages), masterConfig=master, **local())
    return service.train(bucket, "--config", str(config))


def _join_with_front(service: Service, stack: ExitStack, packages: Path, *flags: str) -> None:
    """Another agent in place of the service's own, as of another machine: with the bucket `shared` of the project."""
    with service.client() as client:
        url, token = client.server.url, client.server.token
    headers = {"Authorization": f"Bearer {token}"}
    made = httpx.post(
        f"{url}/storage/v1/b?project=local", json={"name": "shared"}, headers=headers, trust_env=False, timeout=60
    )
    assert made.status_code == 200, made.text
    _, _, name = service.ok("agents", "list", "--format", "value(name)").strip().rpartition("\n")
    service.ok("agents", "drain", name)
    secret = write_token(service.root / "agent-token", service.ok("agents", "add", "second").strip())
    (port,) = free_ports(1)
    front = ("agent", "storage", url, "--containers", "--port", str(port), "--state-dir", str(service.root / "front"))
    roots = service.root / "front" / "roots.pem"
    agent = (
        *("agent", "join", url, "--token-file", str(secret), "--state-dir", str(service.root / "joined")),
        *("--runtime", "docker", "--one-user", "--pull", "never", "--job-dir-root", str(packages.parent), *flags),
        *("--replica-env", f"STORAGE_EMULATOR_HOST=http://127.0.0.1:{port}/{{job}}"),
        *("--replica-env", f"STORAGE_EMULATOR_ROOTS={roots}"),
    )
    for words in (front, agent):
        process = service.start(*words)
        stack.callback(process.communicate)
        stack.callback(process.terminate)
        until(roots.exists, "the front")
    with service.client() as client:
        until(lambda: ("second", "alive") in [(one.name, one.state) for one in client.status().agents], "the agent")
