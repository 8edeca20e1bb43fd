"""The description of a container, and what its state says: pure."""

from dataclasses import replace
from typing import Any

import pytest

from trainyard_agent.engines.docker import spec as docker_spec
from trainyard_agent.engines.docker.spec import ImageInfo, Owner, RunNetwork
from trainyard_agent.runtimes.base import Launch, ProgramUser
from trainyard_protocol.states import Reason
from unit.agent.stub_server import run_order

RUN = "1F0C3A9BE2" + "0" * 22
MASTER, WORKER = "master-replica-0", "worker-replica-1"
IMAGE = ImageInfo("sha256:abc", ("PATH=/opt/bin:/bin", "LANG=C"), ("/entry",), ("serve", "--port"))
ENDED = {
    "Status": "exited",
    "ExitCode": 0,
    "OOMKilled": False,
    "Error": "",
    "StartedAt": "2026-11-21T05:59:41.085364984Z",
    "FinishedAt": "2026-11-21T05:59:42.000000001Z",
}


def spec(launch: Launch, **given: Any) -> dict[str, Any]:
    order = run_order(RUN, MASTER, WORKER)
    network = RunNetwork({MASTER: "172.18.0.2", WORKER: "172.18.0.3"}, "172.17.0.1")
    options = {"network": network, "pids_limit": 100, **given}
    return docker_spec.container_spec(Owner("a1", "http://s", "/state", "host view"), order, launch, IMAGE, **options)


def launch(**given: Any) -> Launch:
    defaults = {"task": WORKER, "command": ("--epochs", "5"), "environment": {"TF_CONFIG": '{"a": 1}'}}
    return Launch(**{**defaults, "cpus": (2, 3), "memory_bytes": 8 * 10**9, **given})


def test_ip_addresses_begin_after_the_gateway_and_fit_into_the_network() -> None:
    tasks = [MASTER, *(f"worker-replica-{n}" for n in range(4))]
    order = run_order(RUN, *tasks)
    assert list(docker_spec.ip_addresses(order, "10.1.2.0/24").values()) == [f"10.1.2.{n}" for n in range(2, 7)]
    with pytest.raises(ValueError, match=r"10\.1\.2\.0/29 has no room for 6 replicas"):
        docker_spec.ip_addresses(run_order(RUN, *tasks, "worker-replica-4"), "10.1.2.0/29")


def test_spec_gives_another_user_a_home_and_no_capability() -> None:
    made = spec(launch(user=ProgramUser(1000, 7, "ann"), environment={"USER": "mine"}))
    assert (made["User"], made["WorkingDir"]) == ("1000:7", docker_spec.HOME)
    assert {f"HOME={docker_spec.HOME}", "USER=mine", "LOGNAME=ann"} < set(made["Env"])
    assert made["HostConfig"]["CapAdd"] == []
    assert "User" not in spec(launch())
    assert spec(launch())["HostConfig"]["CapAdd"]
    order, kept = run_order(RUN, MASTER, WORKER), ImageInfo("sha256:abc", user="trainer")
    of_image = docker_spec.container_spec(Owner("a1"), order, launch(), kept, network=RunNetwork({}, ""), pids_limit=1)
    assert of_image["HostConfig"]["CapAdd"] == []


def test_image_keeps_its_number_of_threads_unless_the_job_sets_it() -> None:
    image = replace(IMAGE, environment=("TF_NUM_INTEROP_THREADS=2",))
    started = launch(environment={"TF_NUM_INTEROP_THREADS": "4"})
    order = run_order(RUN, WORKER)
    env = {"TF_NUM_INTEROP_THREADS": "4"}
    asked = order.model_copy(update={"training_input": order.training_input.model_copy(update={"env": env})})
    for given, kept in ((order, False), (asked, True)):
        network = RunNetwork({}, "")
        made = docker_spec.container_spec(Owner("a1"), given, started, image, network=network, pids_limit=1)
        assert ("TF_NUM_INTEROP_THREADS=4" in made["Env"]) is kept


def test_spec_asks_for_gpus_by_the_drivers_ids_and_hides_others_from_images_that_ask_for_all() -> None:
    made = spec(launch(gpus=("GPU-1", "GPU-2")))
    request = {"DeviceIDs": ["GPU-1", "GPU-2"], "Capabilities": [["gpu"]]}
    assert made["HostConfig"]["DeviceRequests"] == [request]
    assert not [pair for pair in made["Env"] if pair.startswith("NVIDIA_VISIBLE_DEVICES")]
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec(launch())["Env"]


def test_spec_never_changes_what_the_service_set() -> None:
    made = spec(launch(environment={"PYTHONUNBUFFERED": "", "TF_CONFIG": "{}"}))
    assert "PYTHONUNBUFFERED=" in made["Env"]
    assert "TF_CONFIG={}" in made["Env"]


@pytest.mark.parametrize(
    ("given", "entrypoint", "command", "program"),
    [
        ({"command": ()}, None, None, "/entry"),
        ({"command": ("a",)}, None, ["a"], "/entry"),
        ({"command": (), "entrypoint": ("run",)}, ["run"], None, "run"),
        ({"command": ("a",), "entrypoint": ("run",)}, ["run"], ["a"], "run"),
    ],
)
def test_entry_point_and_arguments_follow_dockers_rules(
    given: dict[str, Any], entrypoint: Any, command: Any, program: str
) -> None:
    made = spec(launch(**given))
    assert (made["Entrypoint"], made["Cmd"]) == (entrypoint, command)
    assert IMAGE.program(launch(**given)) == program


@pytest.mark.parametrize(
    ("state", "code", "reason", "message"),
    [
        ({}, 0, Reason.COMPLETED, "It completed."),
        ({"ExitCode": 3}, 3, Reason.PROGRAM_ERROR, "It exited with a non-zero status of 3."),
        ({"ExitCode": 137}, 137, Reason.KILLED_BY_SIGNAL, "It was killed by signal 9 (SIGKILL)."),
        ({"ExitCode": 137, "OOMKilled": True}, 137, Reason.OUT_OF_MEMORY, "Its memory limit is 8 GB."),
        ({"ExitCode": 1, "OOMKilled": True}, 1, Reason.OUT_OF_MEMORY, "Its memory limit is 8 GB."),
        ({"ExitCode": 0, "OOMKilled": True}, 0, Reason.COMPLETED, "It completed."),
        (
            {
                "ExitCode": 127,
                "StartedAt": "0001-01-01T00:00:00Z",
                "Error": "failed to create shim task: OCI runtime create failed: runc create failed: unable to "
                'start container process: exec: "/x": stat /x: no such file or directory: unknown',
            },
            None,
            Reason.START_FAILED,
            'exec: "/x": stat /x: no such file or directory.',
        ),
    ],
)
def test_exit_of_a_container_says_code_reason_and_why(
    state: dict[str, Any], code: int | None, reason: Reason, message: str
) -> None:
    ended = docker_spec.exit_of({**ENDED, **state}, 8 * 10**9)
    assert (ended.code, ended.reason, ended.message) == (code, reason, message)
    assert ended.finished_at.isoformat() == "2026-11-21T05:59:42+00:00"


def test_spec_of_a_part_is_reached_at_its_machines_address() -> None:
    part = RunNetwork({}, "172.17.0.1", {MASTER: "10.0.0.7:30001", WORKER: "10.0.0.7:30002"})
    made = spec(launch(), network=part)
    assert made["HostConfig"]["PortBindings"] == {"30002/tcp": [{"HostIp": "10.0.0.7", "HostPort": "30002"}]}
    assert made["ExposedPorts"] == {"30002/tcp": {}}
    assert "PortBindings" not in spec(launch())["HostConfig"]
    of_host = spec(launch(), network=RunNetwork({}, "172.17.0.1", part.published, is_hosts=True))
    assert of_host["HostConfig"]["NetworkMode"] == "host"
    assert not of_host.keys() & {"ExposedPorts", "NetworkingConfig"}
    assert "PortBindings" not in of_host["HostConfig"]


def test_images_are_named_by_the_digest_that_a_registry_has() -> None:
    mirror, own = "mirror:5000/team/a@sha256:1", "registry:5000/team/a@sha256:2"
    pulled = {"Id": "sha256:i", "RepoTags": ["registry:5000/team/a:1"], "RepoDigests": [mirror, own]}
    built = {"Id": "sha256:b", "RepoTags": ["trainyard/tf:2.11"], "RepoDigests": []}
    assert docker_spec.digests({"registry:5000/team/a:1": pulled, "": built, "c@sha256:9": {"Id": "sha256:c"}}) == {
        "registry:5000/team/a:1": own,
        "trainyard/tf:2.11": "sha256:b",
        "c@sha256:9": "sha256:c",
    }
    assert docker_spec.digests({"other": pulled}) == {"other": mirror}
