from datetime import UTC, datetime

from trainyard_cli.output.jobs.job_texts import _run_lines
from trainyard_protocol.views.views import RunView

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_replicas_in_an_engine_have_amounts_and_what_they_wait_for() -> None:
    given = {"machine_type": "n1-standard-4", "vcpus": 4, "memory_bytes": 15 * 10**9}
    gpus = {"accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 2}
    run = RunView.model_validate(
        {
            "run_id": "r",
            "number": 1,
            "state": "PREPARING",
            "agent": "west",
            "created_at": NOW,
            "runtime": "kubernetes",
            "replicas": [
                {"task": "master-replica-0", "state": "RUNNING", **given, **gpus},
                {"task": "worker-replica-0", "state": "STARTING", "waits": "no room", **given},
            ],
        }
    )
    text = "\n".join(_run_lines(run, 1, NOW))
    assert "In a Kubernetes cluster." in text
    assert "4 vCPU, 2 x NVIDIA_TESLA_T4" in text
    assert text.endswith("  worker-replica-0 waits: no room")
