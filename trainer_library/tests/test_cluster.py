import json
import os
from typing import Any

import pytest

from support.lazy import strategy
from trainyard_trainer.processes import cluster as clusters
from trainyard_trainer.processes.cluster import ClusterError, ClusterSpec, parse_tf_config

HOSTS = {
    "chief": ["cmle-training-master-8a1c-0:2222"],
    "worker": [f"cmle-training-worker-8a1c-{index}:2222" for index in range(2)],
}
WITH_SERVERS = {**HOSTS, "ps": ["cmle-training-ps-8a1c-0:2222", "cmle-training-ps-8a1c-1:2222"]}
OF_A_MASTER = {"worker": HOSTS["worker"], "master": HOSTS["chief"]}
SYNCHRONOUS = "trains synchronously.*parameterServerCount.*TensorFlow's ParameterServerStrategy: see Strategies"
LOCAL = {"chief": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223", "127.0.0.1:2224"]}


def tf_config(cluster: dict[str, list[str]], task_type: str, index: Any = 0) -> str:
    task = {"type": task_type, "index": index}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


def test_tf_config_without_a_cluster_or_with_only_a_primary_is_a_single_process() -> None:
    texts = [
        "",
        "{}",
        '{"cluster": {}, "task": {}}',
        '{"task": {"type": "worker", "index": 3}}',
        '{"cluster": null}',
        *(tf_config({primary: ["127.0.0.1:2222"]}, primary) for primary in ("master", "chief")),
    ]
    assert {text: parse_tf_config(text) for text in texts} == dict.fromkeys(texts, ClusterSpec())


SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "chief": (tf_config(HOSTS, "chief"), {"process_id": 0, "is_chief": True, "num_processes": 3}),
    "worker 0": (tf_config(HOSTS, "worker"), {"process_id": 1, "is_chief": False, "num_processes": 3}),
    "worker 1": (tf_config(HOSTS, "worker", 1), {"process_id": 2, "coordinator": HOSTS["chief"][0]}),
    "an index as text": (tf_config(HOSTS, "worker", "1"), {"process_id": 2}),
    "master": (tf_config(OF_A_MASTER, "master"), {"process_id": 0, "is_chief": True, "num_processes": 3}),
    "worker of a master": (
        tf_config(OF_A_MASTER, "worker", 1), {"process_id": 2, "coordinator": HOSTS["chief"][0]},
    ),
    "workers alone": (
        tf_config({"worker": HOSTS["worker"]}, "worker", 1),
        {"process_id": 1, "num_processes": 2, "coordinator": HOSTS["worker"][0]},
    ),
    "no parameter servers": (tf_config({**HOSTS, "ps": []}, "worker", 1), {"process_id": 2, "num_processes": 3}),
    "evaluator": (
        tf_config(HOSTS, "evaluator", 1),
        {"role": "evaluator", "index": 1, "process_id": 0, "coordinator": None, "is_chief": False},
    ),
    "processes on one host": (tf_config(LOCAL, "worker", 1), {"index_on_host": 2, "processes_on_host": 3}),
    "processes on several": (tf_config(HOSTS, "worker", 1), {"index_on_host": 0, "processes_on_host": 1}),
}  # fmt: skip


def test_tf_config_gives_each_task_its_place_in_the_cluster() -> None:
    expected = {name: fields for name, (_, fields) in SPECS.items()}
    specs = {name: parse_tf_config(text) for name, (text, _) in SPECS.items()}
    parsed = {name: {field: getattr(specs[name], field) for field in fields} for name, fields in expected.items()}
    assert parsed == expected


def test_strategy_is_chosen_by_flag_and_cluster() -> None:
    alone, pair = ClusterSpec(), ClusterSpec(num_processes=2)
    expected: dict[tuple[Any, ClusterSpec], str] = {
        ("auto", alone): "auto",
        ("auto", pair): "multi-worker-mirrored",
        ("multi-worker-mirrored", pair): "multi-worker-mirrored",
        ("one-device", alone): "one-device",
        ("mirrored", alone): "mirrored",
    }
    assert {case: strategy.choose_strategy(*case) for case in expected} == expected
    refused: dict[tuple[Any, ClusterSpec], str] = {
        ("mirrored", pair): "is for one process, and TF_CONFIG has 2 that train",
        ("one-device", pair): "is for one process",
    }
    for case, message in refused.items():
        with pytest.raises(ClusterError, match=message):
            strategy.choose_strategy(*case)


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
        *((tf_config(WITH_SERVERS, task), SYNCHRONOUS) for task in ("chief", "worker", "ps", "evaluator")),
        (tf_config({**HOSTS, "master": ["a:1"]}, "chief"), "two names for one role"),
    ],
)
def test_invalid_tf_config_is_refused(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        parse_tf_config(text)


def test_environment_jax_coordinator_address_wins_where_there_are_several_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(HOSTS, "worker"))
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.7:9999")
    assert clusters.cluster_from_environment().coordinator == "10.0.0.7:9999"
    monkeypatch.delenv("TF_CONFIG")
    assert clusters.cluster_from_environment() == ClusterSpec()


def test_divide_cpus_divides_a_host_among_its_processes_unless_they_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    def divided(count: int, allowed: set[int], index: int, processes: int) -> set[int]:
        after = [allowed]
        monkeypatch.setattr(os, "cpu_count", lambda: count)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed)
        monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: after.append(set(cpus)))
        clusters.divide_cpus(ClusterSpec(index_on_host=index, processes_on_host=processes))
        return after[-1]

    expected = {
        (8, 2): [{0, 1, 2, 3}, {4, 5, 6, 7}],
        (4, 3): [{0}, {1}, {2, 3}],
        (2, 4): [{0}, {0}, {1}, {1}],
        (4, 1): [{0, 1, 2, 3}],
    }
    assert expected == {
        (count, processes): [divided(count, set(range(count)), index, processes) for index in range(processes)]
        for count, processes in expected
    }
    assert divided(8, {2, 3}, 1, 2) == {2, 3}
