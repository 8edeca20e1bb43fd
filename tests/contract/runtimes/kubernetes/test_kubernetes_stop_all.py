"""An agent of a cluster that does not run: its runs are ended, and its namespace examined, by its command alone."""

import json
import uuid
from pathlib import Path

import pytest

from beds.kubernetes.bed import Bed
from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import FOREVER, Driver, KubernetesLab
from trainyard_agent.engines.kubernetes.api.access import RULES
from trainyard_agent.engines.kubernetes.engine import secret_of
from trainyard_agent.host.identity import Identity
from trainyard_agent.main import main
from trainyard_protocol.states import Reason

pytestmark = pytest.mark.long

CHIEF, WORKER = "master-replica-0", "worker-replica-0"


def test_stop_all_ends_the_pods_of_a_namespace_and_the_doctor_knows_whose_they_are(
    kubernetes: Bed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unique_run("1")
    kubeconfig = kubernetes.with_role(f"stop-{uuid.uuid4().hex[:8]}", RULES)
    lab = KubernetesLab(tmp_path / "lab", kubeconfig)
    driver = Driver(lab)
    driver.start_and_wait(run, {CHIEF: FOREVER, WORKER: FOREVER})

    def agent(directory: str, *words: str) -> str:
        cluster = "--runtime", "kubernetes", "--kubeconfig", str(kubeconfig)
        assert main(["--state-dir", str(tmp_path / directory), *cluster, *words]) == 0
        return capsys.readouterr().out

    *_, orphans = json.loads(agent("new", "--doctor"))
    assert orphans["status"] == "problem"
    assert f"of the run {run[:12]} is orphaned: it is of another agent, {lab.owner.agent_id}." in orphans["found"]
    assert "Stopped 0 replicas" in agent("new", "--stop-all")

    lab.client.create("secrets", secret_of(Identity(lab.owner.agent_id, "key")))
    found = json.loads(agent("new", "--doctor"))
    assert [(one["check"], one["status"]) for one in found] == [
        *(("kubernetes", "ok"), ("permissions", "ok"), ("orphans", "ok"))
    ]
    assert "Stopped 2 replicas" in agent("new", "--stop-all", "--grace", "3")
    lab.reopen()
    ends = {report.exit.reason for report in driver.reports(run).values() if report.exit is not None}
    assert ends == {Reason.HOST_SHUTDOWN}
    lab.end()
