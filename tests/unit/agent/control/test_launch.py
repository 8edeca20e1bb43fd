"""From an order and what was staged for it to what a runtime starts."""

import pytest

from trainyard_agent.control.launch import launches
from trainyard_agent.runtimes.base import Keep, ProgramUser
from trainyard_agent.staging.base import Staging
from unit.agent.stub_server import run_order

RUN = "1" * 32
MASTER, WORKER = "master-replica-0", "worker-replica-0"
ADDRESSES = {MASTER: "m:2222", WORKER: "w:2222"}


def test_replicas_are_kept_after_a_failure_as_the_job_says_but_evaluators() -> None:
    order = run_order(RUN, MASTER, "evaluator-replica-0", scheduling={"keepOnFailure": "1.5s"})
    order = order.model_copy(update={"retried_codes": (33,)})
    master, evaluator = launches(order, {MASTER: "m:2222", "evaluator-replica-0": "e:2222"}, Staging("ready"), {})
    assert (master.keep, evaluator.keep) == (Keep(2, "j", (33,)), None)
    (plain,) = launches(run_order(RUN, MASTER), {MASTER: "m:2222"}, Staging("ready"), {})
    assert plain.keep is None


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
    user = ProgramUser(1, 2, "u")
    staging = Staging("ready", images=images, users={"team/b:1": user}, job_dir="/real/job", job_dir_target="/data/job")
    master, worker = launches(order, ADDRESSES, staging, {})
    assert (master.image, master.entrypoint) == ("sha256:a", ())
    assert master.command == ("--lr", "1", "--job-dir", "/data/job")
    assert (worker.image, worker.entrypoint, worker.command) == ("sha256:b", ("run",), ("x",))
    assert (worker.job_dir, worker.job_dir_source) == ("/data/job", "/real/job")
    assert (master.user, worker.user) == (None, user)


def test_module_in_an_image_runs_whatever_entry_point_the_image_has() -> None:
    """Jobs of AI Platform's pre-built PyTorch containers: an image, packages and a module."""
    image = {"imageUri": "team/torch:1"}
    order = run_order(RUN, MASTER, WORKER, args=["--epochs", "5"], jobDir="gs://b/d", masterConfig=image)
    images = {"team/torch:1": "sha256:t"}
    staging = Staging("ready", python="/env/bin/python", images=images, packages="/state/env")
    for made in launches(order, ADDRESSES, staging, {}):
        words = (*made.entrypoint, *made.command)
        assert words == (
            *("/usr/bin/env", "/env/bin/python", "-m", "trainer.task", "--epochs", "5"),
            *("--job-dir", "gs://b/d"),
        )
        assert (made.image, made.packages) == ("sha256:t", "/state/env")


def test_service_wins_over_what_the_agent_adds() -> None:
    (made,) = launches(run_order(RUN, MASTER), {MASTER: "m:2222"}, Staging("ready"), {"TF_CONFIG": "mine", "MORE": "1"})
    assert made.environment["TF_CONFIG"] != "mine"
    assert made.environment["MORE"] == "1"


@pytest.mark.parametrize(("address", "masked"), [("http://front/{job}", ["its-token"]), ("http://gs/s", [])])
def test_token_of_the_run_is_in_an_address_that_asks_for_it_and_masked(address: str, masked: list[str]) -> None:
    order = run_order(RUN, MASTER).model_copy(update={"run_token": "its-token"})
    (made,) = launches(order, ADDRESSES, Staging("ready"), {"STORAGE_EMULATOR_HOST": address})
    assert made.environment["STORAGE_EMULATOR_HOST"] == address.replace("{job}", "its-token")
    assert made.secret_values == masked


@pytest.mark.parametrize(
    ("cpus", "given", "threads"),
    [((0,), {}, "4"), ((0,), {"TF_NUM_INTEROP_THREADS": "1"}, "1"), ((0, 1, 2, 3), {}, None)],
)
def test_tensorflow_has_threads_to_wait_for_each_other_on_few_cpus_unless_told_otherwise(
    cpus: tuple[int, ...], given: dict[str, str], threads: str | None
) -> None:
    order = run_order(RUN, MASTER)
    replicas = tuple(one.model_copy(update={"cpus": cpus}) for one in order.replicas)
    (made,) = launches(order.model_copy(update={"replicas": replicas}), {MASTER: "m:2222"}, Staging("ready"), given)
    assert made.environment.get("TF_NUM_INTEROP_THREADS") == threads
