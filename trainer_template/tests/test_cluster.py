import json
import os
from typing import Any

import pytest

from support.lazy import strategy
from trainer import cluster as clusters
from trainer.cluster import ClusterError, ClusterSpec, parse_tf_config

HOSTS = {
    "chief": ["cmle-training-master-8a1c-0:2222"],
    "worker": [f"cmle-training-worker-8a1c-{index}:2222" for index in range(2)],
}


def tf_config(cluster: dict[str, list[str]], task_type: str, index: Any = 0) -> str:
    return json.dumps(
        {"cluster": cluster, "task": {"type": task_type, "index": index}, "environment": "cloud"}
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"cluster": {}, "task": {}}',
        '{"task": {"type": "worker", "index": 3}}',
        '{"cluster": null}',
    ],
)
def test_tf_config_without_a_cluster_is_a_single_process(text: str) -> None:
    assert parse_tf_config(text) == ClusterSpec()


@pytest.mark.parametrize("primary", ["master", "chief"])
def test_tf_config_with_only_a_primary_is_a_single_process(primary: str) -> None:
    assert parse_tf_config(tf_config({primary: ["127.0.0.1:2222"]}, primary)) == ClusterSpec()


@pytest.mark.parametrize("primary", ["master", "chief"])
def test_tf_config_numbers_the_primary_0_and_then_the_workers(primary: str) -> None:
    cluster = {"worker": HOSTS["worker"], primary: HOSTS["chief"]}
    tasks = [(primary, 0), ("worker", 0), ("worker", 1)]
    specs = [parse_tf_config(tf_config(cluster, *task)) for task in tasks]
    assert [spec.process_id for spec in specs] == [0, 1, 2]
    assert [spec.is_chief for spec in specs] == [True, False, False]
    assert {spec.num_processes for spec in specs} == {3}
    assert {spec.coordinator for spec in specs} == {HOSTS["chief"][0]}


def test_tf_config_with_workers_alone_makes_the_first_the_chief() -> None:
    spec = parse_tf_config(tf_config({"worker": HOSTS["worker"]}, "worker", 1))
    assert (spec.process_id, spec.num_processes) == (1, 2)
    assert spec.coordinator == HOSTS["worker"][0]


WITH_SERVERS = {**HOSTS, "ps": ["cmle-training-ps-8a1c-0:2222", "cmle-training-ps-8a1c-1:2222"]}


def test_tf_config_with_parameter_servers_counts_only_trainers() -> None:
    spec = parse_tf_config(tf_config(WITH_SERVERS, "worker", 1))
    assert (spec.role, spec.process_id, spec.num_processes) == ("trainer", 2, 3)
    assert spec.parameter_servers == tuple(WITH_SERVERS["ps"])


def test_tf_config_of_a_parameter_server_has_its_index() -> None:
    spec = parse_tf_config(tf_config(WITH_SERVERS, "ps", 1))
    assert (spec.role, spec.index, spec.is_chief, spec.num_processes) == ("ps", 1, False, 3)
    assert spec.parameter_servers == tuple(WITH_SERVERS["ps"])


@pytest.mark.parametrize("index", [0, 1])
def test_tf_config_of_an_evaluator_has_no_cluster(index: int) -> None:
    spec = parse_tf_config(tf_config(HOSTS, "evaluator", index))
    assert (spec.role, spec.index, spec.process_id, spec.coordinator) == ("evaluator", index, 0, None)
    assert not spec.is_chief


@pytest.mark.parametrize(
    ("flag", "cluster", "chosen"),
    [
        ("auto", ClusterSpec(), "auto"),
        ("auto", ClusterSpec(num_processes=2), "multi-worker-mirrored"),
        ("auto", ClusterSpec(num_processes=2, parameter_servers=("a:1",)), "parameter-server"),
        (
            "multi-worker-mirrored",
            ClusterSpec(num_processes=2, parameter_servers=("a:1",)),
            "multi-worker-mirrored",
        ),
        ("one-device", ClusterSpec(), "one-device"),
        ("mirrored", ClusterSpec(), "mirrored"),
    ],
)
def test_strategy_is_chosen_by_flag_and_cluster(flag: Any, cluster: ClusterSpec, chosen: str) -> None:
    assert strategy.choose_strategy(flag, cluster) == chosen


@pytest.mark.parametrize(
    ("flag", "cluster", "message"),
    [
        (
            "parameter-server",
            ClusterSpec(num_processes=2),
            "requires ps tasks in the cluster: parameterServerCount",
        ),
        ("mirrored", ClusterSpec(num_processes=2), "is for one process, and TF_CONFIG has 2 that train"),
        ("one-device", ClusterSpec(parameter_servers=("a:1",)), "is for one process"),
    ],
)
def test_strategy_that_does_not_fit_the_cluster_is_refused(
    flag: Any, cluster: ClusterSpec, message: str
) -> None:
    with pytest.raises(ClusterError, match=message):
        strategy.choose_strategy(flag, cluster)


def test_tf_config_index_may_be_text() -> None:
    assert parse_tf_config(tf_config(HOSTS, "worker", "1")).process_id == 2


def test_tf_config_counts_the_processes_of_a_host() -> None:
    local = {"chief": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223", "127.0.0.1:2224"]}
    spec = parse_tf_config(tf_config(local, "worker", 1))
    assert (spec.index_on_host, spec.processes_on_host) == (2, 3)
    spec = parse_tf_config(tf_config(HOSTS, "worker", 1))
    assert (spec.index_on_host, spec.processes_on_host) == (0, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ('{"cluster": ["a:1"], "task": {"type": "chief", "index": 0}}', "must map task types"),
        ('{"cluster": {"chief": "a:1"}, "task": {"type": "chief", "index": 0}}', "must map task types"),
        ('{"cluster": {"chief": ["a"]}, "task": {"type": "chief", "index": 0}}', "must map task types"),
        (json.dumps({"cluster": HOSTS}), "has no type and index"),
        (json.dumps({"cluster": HOSTS, "task": {"type": "worker"}}), "has no type and index"),
        (tf_config(HOSTS, "worker", "first"), "has no type and index"),
        (tf_config(HOSTS, "worker", 2), "worker 2, but its cluster has: chief 0, worker 0, worker 1"),
        (tf_config(HOSTS, "master"), "master 0, but its cluster has"),
        (tf_config(WITH_SERVERS, "ps", 2), "ps 2, but its cluster has: .*ps 0, ps 1"),
        (tf_config({"ps": ["a:1"]}, "ps"), "no chief and no worker to train"),
        (tf_config({**HOSTS, "master": ["a:1"]}, "chief"), "two names for one role"),
    ],
)
def test_invalid_tf_config_is_refused(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        parse_tf_config(text)


def test_environment_jax_coordinator_address_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(HOSTS, "worker"))
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.7:9999")
    assert clusters.cluster_from_environment().coordinator == "10.0.0.7:9999"


def test_environment_jax_coordinator_address_of_a_single_process_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.7:9999")
    assert clusters.cluster_from_environment() == ClusterSpec()


class Cpus:
    """Simulates a machine with CPUs and an affinity mask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, allowed: set[int]) -> None:
        self.allowed = allowed
        monkeypatch.setattr(os, "cpu_count", lambda: count)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: self.allowed)
        monkeypatch.setattr(os, "sched_setaffinity", self._set)

    def _set(self, _pid: int, cpus: list[int]) -> None:
        self.allowed = set(cpus)


@pytest.mark.parametrize(
    ("count", "processes", "expected"),
    [
        (8, 2, [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        (4, 3, [{0}, {1}, {2, 3}]),
        (2, 4, [{0}, {0}, {1}, {1}]),
        (4, 1, [{0, 1, 2, 3}]),
    ],
)
def test_divide_cpus_divides_a_host_among_its_processes(
    monkeypatch: pytest.MonkeyPatch, count: int, processes: int, expected: list[set[int]]
) -> None:
    for spec, allowed in enumerate(expected):
        cpus = Cpus(monkeypatch, count, set(range(count)))
        clusters.divide_cpus(ClusterSpec(index_on_host=spec, processes_on_host=processes))
        assert cpus.allowed == allowed


def test_divide_cpus_does_not_change_a_pinned_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = Cpus(monkeypatch, 8, {2, 3})
    clusters.divide_cpus(ClusterSpec(index_on_host=1, processes_on_host=2))
    assert cpus.allowed == {2, 3}
