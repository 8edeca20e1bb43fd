"""Failures around a run of containers, each with its outcome; `host` checks that nothing remains."""

import errno
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from beds.engines import OwnEngine
from integration.engine.runs import CHIEF, WORKER, Host, host_on
from trainyard_agent.engines.docker import run_files
from trainyard_agent.engines.docker import spec as docker_spec
from trainyard_agent.engines.docker.client import DockerClient, EngineDown, EngineRefused
from trainyard_agent.host.files import remove_tree
from trainyard_agent.runtimes.base import LogSlice, StartFailed
from trainyard_protocol.states import Reason, ReplicaState

COUNT = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"


@pytest.fixture
def fragile(own_engine: OwnEngine, tmp_path: Path) -> Iterator[Host]:
    """On an engine that the test may stop, kill and start again: `own_engine`."""
    with host_on(own_engine, tmp_path / "state") as host:
        yield host


class StartsAndSays500(DockerClient):
    """The container runs, and the engine answers that it does not."""

    def start(self, container: str) -> None:
        super().start(container)
        raise EngineRefused(500, "context deadline exceeded")


class HasAFullDisk(DockerClient):
    def create(self, name: str, spec: Mapping[str, Any]) -> str:
        if WORKER in name:
            raise EngineRefused(500, "mkdir /var/lib/docker/overlay2/x: no space left on device")
        return super().create(name, spec)


class LosesAnswers(DockerClient):
    """Does what it is asked to, and the answer to the first creation is lost."""

    lost = False

    def create(self, name: str, spec: Mapping[str, Any]) -> str:
        made = super().create(name, spec)
        if not self.lost:
            self.lost = True
            raise EngineDown("the connection was reset")
        return made


class DiesBetweenTwoStarts(DockerClient):
    """The agent is killed when it has started one of the containers."""

    started = 0

    def start(self, container: str) -> None:
        self.started += 1
        if self.started == 2:
            raise KeyboardInterrupt
        super().start(container)


@pytest.mark.parametrize("faulty", [StartsAndSays500, HasAFullDisk, LosesAnswers])
def test_start_that_the_engine_fails_leaves_nothing_and_is_the_machines_fault(
    host: Host, faulty: type[DockerClient]
) -> None:
    other = Host(host.engine, host.state_dir / "other", connection=faulty(host.engine.url))
    order = other.order(CHIEF, WORKER)
    other.runtime.place(order)
    with pytest.raises(StartFailed) as failure:
        other.runtime.start(order.run_id, [other.launch("sleep 1000", task) for task in (CHIEF, WORKER)])
    assert failure.value.reason is Reason.HOST_FAILED
    assert other.runtime.observe(order.run_id) == ()
    assert other.remaining() == []
    other.runtime.close()
    assert other.connection is not None
    other.connection.close()


def test_agent_that_dies_between_two_starts_leaves_the_rest_to_the_next_one(host: Host) -> None:
    first = Host(host.engine, host.state_dir, host.owner, DiesBetweenTwoStarts(host.engine.url))
    order = first.order(CHIEF, WORKER)
    first.runtime.place(order)
    with pytest.raises(KeyboardInterrupt):
        first.runtime.start(order.run_id, [first.launch("sleep 1000", task) for task in (CHIEF, WORKER)])
    first.runtime.close()
    assert first.connection is not None
    first.connection.close()

    host.new_agent()

    states = [report.state for report in host.runtime.observe(order.run_id)]
    assert states == [ReplicaState.RUNNING, ReplicaState.RUNNING]


def test_container_killed_from_outside_is_told_as_killed(host: Host) -> None:
    """`docker kill`"""
    run_id = host.start_gang({CHIEF: "sleep 1000", WORKER: "echo up; sleep 1000"})
    host.until(lambda: host.printed(run_id, WORKER) == ["up"])
    found(host, run_id, WORKER).kill()
    ended = host.end(run_id, WORKER)
    assert (ended.code, ended.reason, ended.after_stop) == (137, Reason.KILLED_BY_SIGNAL, False)
    assert host.log(run_id, WORKER) == ["up"]
    assert host.running(run_id)


@pytest.mark.parametrize("agent_runs", [True, False])
def test_container_removed_from_outside_vanished_and_its_log_may_lack_lines(host: Host, agent_runs: bool) -> None:
    """`docker rm -f`"""
    run_id = host.start_gang({CHIEF: "echo up; sleep 1000", WORKER: "sleep 1000"})
    host.until(lambda: host.printed(run_id) == ["up"])
    container = found(host, run_id, CHIEF)
    if not agent_runs:
        host.runtime.close()
    container.remove(force=True, v=True)
    if not agent_runs:
        host.new_agent()
    ended = host.end(run_id)
    assert (ended.code, ended.reason) == (None, Reason.VANISHED)
    assert ended.message == "Its container was removed, and not by Trainyard."
    assert host.log(run_id) == ["up"]
    log = host.runtime.read_log(run_id, CHIEF, 0, 10, 1 << 20)
    assert (log.complete, log.missing) == (True, None)
    assert host.running(run_id, WORKER)


@pytest.mark.parametrize("removed", ["", CHIEF])
def test_run_of_which_somebody_removed_a_directory_is_ended_and_its_log_may_lack_lines(
    host: Host, removed: str
) -> None:
    run_id = host.start_gang({CHIEF: "echo up; sleep 1000", WORKER: "echo up; sleep 1000"})
    host.until(lambda: host.printed(run_id) == host.printed(run_id, WORKER) == ["up"])
    remove_tree(host.state_dir / "containers" / run_id / removed)
    assert host.runtime.observe(run_id) == ()
    host.runtime.remove(run_id)
    for task in (CHIEF, WORKER):
        assert host.runtime.read_log(run_id, task, 1, 10, 1 << 20) == LogSlice((), complete=True, missing=None)
    host.runtime.recover()  # as each look at the engine does
    assert host.remaining() == []


def test_log_of_a_container_that_ended_and_was_removed_while_no_agent_ran_is_closed(host: Host) -> None:
    """`docker container prune`, where the agent has died before it had the whole log."""
    run_id = host.start("echo up; exit 3")
    assert host.end(run_id).code == 3
    host.until(lambda: host.runtime.has_ended(run_id))
    host.runtime.close()
    (host.state_dir / "containers" / run_id / CHIEF / "done.json").unlink()
    found(host, run_id, CHIEF).remove()
    host.new_agent()
    host.until(lambda: host.runtime.has_ended(run_id))
    log = host.runtime.read_log(run_id, CHIEF, 0, 10, 1 << 20)
    assert (log.complete, log.missing) == (True, None)


def test_strangers_containers_are_left_alone(host: Host, tmp_path: Path) -> None:
    """Another agent's run of the same id, and a container that looks like ours and carries no label."""
    other = Host(host.engine, tmp_path / "other")
    run_id = other.start("echo up; sleep 1000")
    unlabelled = host.engine.client().containers.run(
        host.engine.base_image, ["sleep", "1000"], name=f"trainyard-j-{run_id[:12]}-{WORKER}", detach=True
    )
    try:
        mine = host.order(CHIEF).model_copy(update={"run_id": run_id, "job_id": "mine"})
        host.runtime.place(mine)
        host.runtime.start(run_id, [host.launch("echo mine; sleep 1000")])
        host.until(lambda: host.printed(run_id) == ["mine"])
        host.runtime.remove(run_id)
        host.new_agent()

        assert other.running(run_id)
        assert other.printed(run_id) == ["up"]
        unlabelled.reload()
        assert unlabelled.status == "running"
    finally:
        unlabelled.remove(force=True)
        other.runtime.remove(run_id)
        assert other.remaining() == []
        other.runtime.close()
        assert other.connection is not None
        other.connection.close()


def test_containers_of_a_run_that_nobody_knows_any_more_are_removed(host: Host) -> None:
    """Its undoing was cut short, or its directory was removed."""
    run_id = host.start("sleep 1000")
    alone = host.order(CHIEF)
    labels = host.owner.labels(docker_spec.NETWORK, alone)
    host.engine.client().networks.create(docker_spec.network_name(alone), labels=labels)
    host.runtime.close()
    (host.state_dir / "containers" / run_id / "run.json").unlink()
    host.new_agent()
    host.until(lambda: host.remaining() == [])


@pytest.mark.parametrize("agent_looks", [True, False])
def test_engine_restart_ends_its_containers_and_is_nobodys_failure(
    fragile: Host, own_engine: OwnEngine, *, agent_looks: bool
) -> None:
    """The program saves on SIGTERM and exits 0: that must not count as a success."""
    run_id = fragile.start("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    fragile.until(lambda: fragile.printed(run_id) == ["up"])
    if not agent_looks:
        fragile.runtime.close()
    own_engine.restart()
    if not agent_looks:
        fragile.new_agent()
    assert fragile.end(run_id).reason is Reason.HOST_SHUTDOWN
    assert fragile.log(run_id) == ["up", "saved"]


def test_engine_killed_with_live_restore_loses_no_line(fragile: Host, own_engine: OwnEngine) -> None:
    own_engine.restart(live_restore=True)
    run_id = fragile.start(COUNT.replace("while :", "while [ $i -lt 100 ]"))
    fragile.until(lambda: len(fragile.printed(run_id)) > 3)
    own_engine.kill()
    assert fragile.report(run_id).exit is None
    own_engine.start(live_restore=True)
    assert fragile.end(run_id).code == 0
    assert fragile.log(run_id) == [str(n) for n in range(100)]


def test_engine_that_is_down_ends_nothing_and_a_stop_waits_for_it(fragile: Host, own_engine: OwnEngine) -> None:
    own_engine.restart(live_restore=True)
    run_id = fragile.start("echo up; sleep 1000")
    fragile.until(lambda: fragile.printed(run_id) == ["up"])
    assert fragile.running(run_id)
    own_engine.stop()

    assert fragile.running(run_id)
    fragile.runtime.stop(run_id, 5.0)
    assert fragile.running(run_id)

    own_engine.start(live_restore=True)
    ended = fragile.end(run_id)
    assert (ended.reason, ended.after_stop) == (Reason.STOPPED, True)


def test_start_on_an_engine_that_is_down_is_the_machines_fault(fragile: Host, own_engine: OwnEngine) -> None:
    order = fragile.order(CHIEF)
    fragile.runtime.place(order)
    launches = [fragile.launch("true")]
    own_engine.stop()
    with pytest.raises(StartFailed) as failure:
        fragile.runtime.start(order.run_id, launches)
    assert failure.value.reason is Reason.HOST_FAILED
    assert "does not answer" in failure.value.message
    own_engine.start()


def test_network_to_which_somebody_else_is_connected_goes_and_he_stays(host: Host) -> None:
    run_id = host.start("exit 0")
    host.end(run_id)
    client = host.engine.client()
    (network,) = client.networks.list(filters={"label": f"{docker_spec.RUN}={run_id}"})
    other = client.containers.run(host.engine.base_image, ["sleep", "1000"], detach=True, init=True)
    try:
        network.connect(other)
        host.runtime.remove(run_id)
        assert host.remaining() == []
        other.reload()
        assert other.status == "running"
        assert network.name not in other.attrs["NetworkSettings"]["Networks"]
    finally:
        other.remove(force=True)


def found(host: Host, run_id: str, task: str) -> Any:
    labels = [f"{docker_spec.RUN}={run_id}", f"{docker_spec.TASK}={task}"]
    (container,) = host.engine.client().containers.list(all=True, filters={"label": labels})
    return container


def test_full_disk_of_the_agent_starts_nothing_and_is_the_machines_fault(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = host.order(CHIEF)
    host.runtime.place(order)
    launches = [host.launch("sleep 1000")]
    monkeypatch.setattr(run_files, "write_json", full_disk)
    with pytest.raises(StartFailed) as failure:
        host.runtime.start(order.run_id, launches)
    assert failure.value.reason is Reason.HOST_FAILED
    assert "No space left on device" in failure.value.message
    assert host.remaining() == []


def test_full_disk_of_the_agent_delays_an_exit_and_loses_no_line(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = host.start("echo up; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo down; exit 3")
    host.until(lambda: host.printed(run_id) == ["up"])
    with monkeypatch.context() as disk:
        disk.setattr(run_files, "write_json", full_disk)
        container = found(host, run_id, CHIEF)
        container.exec_run(["touch", "/tmp/go"])
        container.wait()
        assert host.report(run_id).exit is None
    assert host.end(run_id).code == 3
    assert host.log(run_id) == ["up", "down"]


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_reboot_of_the_machine_is_nobodys_failure(host: Host) -> None:
    """The engine finds the container ended, with whatever code, under another boot."""
    run_id = host.start("echo up; sleep 0.3")
    host.until(lambda: host.printed(run_id) == ["up"])
    container = found(host, run_id, CHIEF)
    host.runtime.close()
    container.wait()
    path = host.state_dir / "containers" / run_id / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "host": "another-boot 1:2.0"}))

    host.new_agent()

    ended = host.end(run_id)
    assert (ended.reason, ended.code) == (Reason.HOST_SHUTDOWN, 0)
    assert host.log(run_id) == ["up"]
