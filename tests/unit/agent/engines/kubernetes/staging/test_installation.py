"""Packages that are installed in pods: the objects, and what the status of a pod says about it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from contract.runtimes.runtime_labs import order
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.engines.kubernetes.pods.status import state_of
from trainyard_agent.engines.kubernetes.staging import installation
from trainyard_agent.engines.kubernetes.staging.installation import Installation
from trainyard_agent.installer.container import NO_ENVIRONMENT, NOT_FETCHED
from trainyard_agent.installer.output import AWAY
from trainyard_agent.runtimes.base import Launch, SecretFile
from trainyard_agent.runtimes.installing import PACKAGES, InstallLimits, activity
from trainyard_protocol.states import Reason, ReplicaState

TASK, RUN = "master-replica-0", "AB" * 16
OWNER = objects.PodOwner("agent")
LIMITS = InstallLimits(seconds=60, memory_bytes=4 * 10**9, cpus=2, disk_bytes=10**9)
FILE = SecretFile("key", "/run/key", "KEY", "private")
LAUNCH = Launch(
    TASK,
    ("python3", "-m", "prog"),
    {"PRICE": "$5"},
    (),
    2 * 10**9,
    vcpus=1,
    image="i",
    packages="/staged",
    secrets={"TOKEN": "hidden"},
    secret_files=(FILE,),
)
INSTALLATION = Installation(
    names=("p+1.whl",), limits=LIMITS, files=("0/p+1.whl", "plan.json"), environment={"PIP_INDEX_URL": "u"}
)


def made() -> dict[str, Any]:
    run = order(RUN, TASK)
    return objects.pod(OWNER, run, LAUNCH, "uid", installation.parts(run, LAUNCH, INSTALLATION))


def test_installer_has_nothing_of_the_program_and_asks_for_no_more() -> None:
    spec = made()["spec"]
    (installer,), (program,) = spec["initContainers"], spec["containers"]
    assert installer["image"] == program["image"]
    assert [one["name"] for one in installer["env"]] == ["PIP_INDEX_URL"]
    assert {one["name"] for one in installer["volumeMounts"]} == {"packages", "environment"}
    assert installer["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert installer["resources"]["requests"] == {"memory": str(2 * 10**9), "cpu": "1000m"}
    assert installer["resources"]["requests"] == installer["resources"]["limits"]
    mounts = {one["name"]: one for one in program["volumeMounts"]}
    assert "packages" not in mounts
    assert (mounts["environment"]["mountPath"], mounts["environment"]["readOnly"]) == (PACKAGES, True)
    assert {"name": "environment", "emptyDir": {"sizeLimit": str(10**9)}} in spec["volumes"]
    assert program["args"][:2] == ["/bin/sh", "-c"]
    assert program["args"][-3:] == ["python3", "-m", "prog"]


def pod(state: dict[str, Any], phase: str = "Pending", **status: Any) -> dict[str, Any]:
    """A pod whose installer has this state."""
    waiting = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    installer = {"name": installation.CONTAINER, "state": state}
    whole = {"phase": phase, "initContainerStatuses": [installer], "containerStatuses": [waiting], **status}
    found = made()
    return {**found, "spec": {**found["spec"], "nodeName": "n"}, "status": whole}


def running(seconds: float) -> dict[str, Any]:
    since = datetime.now(UTC) - timedelta(seconds=seconds)
    return {"running": {"startedAt": since.isoformat(timespec="seconds").replace("+00:00", "Z")}}


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "message": message, "reason": reason}}


EVICTED: dict[str, Any] = {
    "phase": "Failed",
    "reason": "Evicted",
    "message": 'Usage of EmptyDir volume "environment" exceeds the limit "1G". ',
}
PRESSURE = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
AWAY_WORDS = "A package index has not answered for 600 s: no"
DAMAGED = "p.whl could not be fetched: its SHA-256 is 0, not 1."
NO_MATCH = "ERROR: No matching distribution found for x"
NO_MEMORY = "Their installation ran out of memory; its limit is 2 GB, that of its replica."
TOO_SLOW = "Their installation took longer than 60 s, the agent's --install-timeout."
TOO_LARGE = "Their installation used more than 1 GB of disk, the agent's --disk-gb."
UNSEEN = "It ended while its node was down, and its exit code is not known."


def failed(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return pod(ended(code, message, reason), "Failed")


ENDS: dict[str, tuple[dict[str, Any], Reason, str]] = {
    "pip": (failed(1, f"Collecting x\n{NO_MATCH}"), Reason.PACKAGES_FAILED, NO_MATCH),
    "no venv": (
        failed(NO_ENVIRONMENT, "no ensurepip"),
        Reason.IMAGE_FAILED,
        "No environment could be created in its runtime image:  no ensurepip",
    ),
    "no python3": (
        failed(128, "not found in $PATH", "StartError"),
        Reason.IMAGE_FAILED,
        "Its runtime image has no python3: not found in $PATH",
    ),
    "a damaged package": (failed(NOT_FETCHED, DAMAGED), Reason.STAGING_FAILED, DAMAGED),
    "an index that is away": (
        failed(AWAY, f'trainyard-install: {{"failed": "{AWAY_WORDS}"}}'),
        Reason.GIVEN_BACK,
        AWAY_WORDS,
    ),
    "memory": (failed(137, reason="OOMKilled"), Reason.PACKAGES_FAILED, NO_MEMORY),
    "time": (pod(running(61)), Reason.PACKAGES_FAILED, TOO_SLOW),
    "disk": (pod(ended(137), **EVICTED), Reason.PACKAGES_FAILED, TOO_LARGE),
    "its node": (pod(ended(137), **PRESSURE), Reason.HOST_FAILED, PRESSURE["message"]),
    "an unknown end": (failed(137, reason="ContainerStatusUnknown"), Reason.VANISHED, UNSEEN),
}


def test_failed_installation_has_the_reason_and_the_words_of_other_runtimes() -> None:
    ends = {why: state_of(found).exit for why, (found, *_) in ENDS.items()}
    found = {why: end and (end.code, end.reason, end.message) for why, end in ends.items()}
    assert found == {why: (None, reason, message) for why, (_, reason, message) in ENDS.items()}


def test_pod_that_is_deleted_while_it_installs_is_not_the_packages_fault() -> None:
    found = pod(ended(143), "Failed")
    deleted = {**found["metadata"], "deletionTimestamp": "2026-01-01T10:00:00Z"}
    end = state_of({**found, "metadata": deleted}).exit
    assert end is not None
    assert (end.reason, end.message) == (Reason.VANISHED, "Its pod was deleted before it ran, and not by Trainyard.")


def test_replica_waits_for_the_installer_and_then_for_its_own_container() -> None:
    state = state_of(pod(running(5)))
    assert (state.state, state.waits) == (ReplicaState.STARTING, activity(["p+1.whl"]))
    pulling = pod({"waiting": {"reason": "ErrImagePull", "message": "connection refused"}})
    assert state_of(pulling).waits == "ErrImagePull: connection refused"
    end = state_of(pod({"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}})).exit
    assert end is not None
    assert end.reason is Reason.IMAGE_FAILED
    done = pod(ended(0, reason="Completed"))
    assert state_of(done).waits == "its container is made on n"


def test_limit_of_memory_is_the_agents_where_it_is_the_lower_one() -> None:
    run, launch = order(RUN, TASK), replace(LAUNCH, memory_bytes=8 * 10**9, vcpus=16)
    (container,) = installation.parts(run, launch, INSTALLATION).init_containers
    assert container["resources"]["limits"] == {"memory": str(4 * 10**9), "cpu": "2000m"}
