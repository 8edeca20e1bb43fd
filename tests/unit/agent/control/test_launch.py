"""From an order and what was staged for it to what a runtime starts."""

from trainyard_agent.control.launch import launches
from trainyard_agent.staging.base import Staging
from unit.agent.stub_server import run_order

RUN = "1" * 32
MASTER, WORKER = "master-replica-0", "worker-replica-0"
ADDRESSES = {MASTER: "m:2222", WORKER: "w:2222"}


def test_package_job_runs_its_module_in_the_staged_environment() -> None:
    order = run_order(RUN, MASTER, args=["--epochs", "5"], jobDir="gs://b/d")
    staging = Staging("ready", python="/env/bin/python", images={"": "sha256:r"}, packages="/state/env")
    (made,) = launches(order, {MASTER: "127.0.0.1:2222"}, staging, {})
    assert made.command == (
        *("/env/bin/python", "-m", "trainer.task", "--epochs", "5"),
        *("--job-dir", "gs://b/d"),
    )
    assert (made.image, made.packages, made.job_dir, made.entrypoint) == ("sha256:r", "/state/env", "", ())


def test_directory_that_the_service_chose_is_no_argument_and_mounted() -> None:
    order = run_order(RUN, MASTER).model_copy(update={"job_dir": "/state/jobs/p/j"})
    (made,) = launches(order, {MASTER: "m:2222"}, Staging("ready", job_dir="/real/jobs/p/j"), {})
    assert made.command == ("", "-m", "trainer.task")
    assert made.environment["TRAINYARD_JOB_DIR"] == "/state/jobs/p/j"
    assert (made.job_dir, made.job_dir_source) == ("/state/jobs/p/j", "/real/jobs/p/j")


def test_image_job_follows_entry_point_and_arguments_of_each_task() -> None:
    order = run_order(
        RUN,
        MASTER,
        WORKER,
        pythonModule="",
        args=["--lr", "1"],
        jobDir="/data/job",
        masterConfig={"imageUri": "team/a:1"},
        workerConfig={"imageUri": "team/b:1", "containerCommand": ["run"], "containerArgs": ["x"]},
    )
    images = {"team/a:1": "sha256:a", "team/b:1": "sha256:b"}
    staging = Staging("ready", images=images, job_dir="/real/job")
    master, worker = launches(order, ADDRESSES, staging, {})
    assert (master.image, master.entrypoint) == ("sha256:a", ())
    assert master.command == ("--lr", "1", "--job-dir", "/data/job")
    assert (worker.image, worker.entrypoint, worker.command) == ("sha256:b", ("run",), ("x",))
    assert (worker.job_dir, worker.job_dir_source) == ("/data/job", "/real/job")


def test_image_of_a_worker_defaults_to_the_masters() -> None:
    order = run_order(RUN, MASTER, WORKER, pythonModule="", masterConfig={"imageUri": "team/a:1"})
    made = launches(order, ADDRESSES, Staging("ready", images={"team/a:1": "sha256:a"}), {})
    assert [launch.image for launch in made] == ["sha256:a", "sha256:a"]


def test_service_wins_over_what_the_agent_adds() -> None:
    (made,) = launches(
        run_order(RUN, MASTER), {MASTER: "m:2222"}, Staging("ready"), {"TF_CONFIG": "mine", "MORE": "1"}
    )
    assert made.environment["TF_CONFIG"] != "mine"
    assert made.environment["MORE"] == "1"


def test_log_quota_is_each_replicas() -> None:
    order = run_order(RUN, MASTER, WORKER).model_copy(update={"log_quota_bytes": 7})
    made = launches(order, ADDRESSES, Staging("ready"), {})
    assert [launch.log_quota_bytes for launch in made] == [7, 7]
