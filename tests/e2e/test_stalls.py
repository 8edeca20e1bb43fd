"""Stalled jobs: the replica at fault is named, and the job is restarted."""

import pytest

from e2e.harness import Service, local
from trainyard_protocol.answers.jobs import JobDetail

GANG = """
import faulthandler, json, os, pathlib, signal, sys, time

cluster = json.loads(os.environ["TF_CONFIG"])
task = cluster["task"]
name = f"{task['type']}-{task['index']}"
size = sum(len(cluster["cluster"][kind]) for kind in ("chief", "worker"))
job_dir = pathlib.Path(os.environ["TRAINYARD_JOB_DIR"])
hangs, announces = "worker-1", "--announce" in sys.argv

def report(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)

def exchange_gradients(begin, step):  # waits in calls of C alone, so that the innermost frame is always this one
    directory = job_dir / f"{begin}.{step}"
    os.makedirs(directory, exist_ok=True)
    (directory / name).touch()
    while len(os.listdir(directory)) < size:
        time.sleep(0.02)

def read_from_a_dead_disk():
    time.sleep(600)

if announces:
    faulthandler.register(signal.SIGUSR1)
    report("start", stacks="SIGUSR1")
saved = job_dir / "checkpoint"
begin = int(saved.read_text()) if saved.exists() else 0
exchange_gradients(begin, "start")
report("begin", step=begin, steps=12)
for step in range(begin + 1, 13):
    if step == 9 and begin == 0 and name == hangs:
        read_from_a_dead_disk()
    exchange_gradients(begin, step)
    report("progress", step=step, steps=12)
    if step % 6 == 0 and task["type"] == "chief":
        saved.write_text(str(step))
        report("checkpoint", step=step)
    time.sleep(0.1)
report("done", step=12, steps=12)
"""


def detail(service: Service, job: str) -> JobDetail:
    return JobDetail.model_validate_json(service.ok("jobs", "describe", job, "-o", "json", "--all"))


def check_gang_that_stalled_and_was_restarted(service: Service, job: str) -> None:
    job_detail = detail(service, job)
    first, second = job_detail.runs
    assert first.verdict is not None
    assert (first.verdict.reason, first.verdict.replica) == ("STALLED", "worker-replica-1")
    assert first.verdict.step == 8
    assert "worker-replica-1 stands still at step 8 for " in first.verdict.message
    assert "the others wait at the same step" in first.verdict.message
    assert "prog/task.py:" in first.verdict.message
    assert first.verdict.message.endswith(" read_from_a_dead_disk.")
    stacks = {replica.task: replica.stacks for replica in first.replicas}
    assert "exchange_gradients" in stacks["master-replica-0"]
    assert "exchange_gradients" in stacks["worker-replica-0"]
    assert [(r.first_step, r.step, r.steps) for r in first.replicas] == [(0, 8, 12)] * 3
    assert [(r.first_step, r.step, r.steps) for r in second.replicas] == [(6, 12, 12)] * 3
    assert [r.durable_step for r in first.replicas] == [6, None, None]
    assert [event.task for event in job_detail.events if event.kind == "stalled"] == ["worker-replica-1"]
    printed = service.run("jobs", "describe", job).stderr
    assert "Run 1 (STALLED, worker-replica-1) ended at step 8 of 12. " in printed
    assert "Last checkpoint: step 6; 2 steps lost. Run 2 continues at step 6: 2 steps are done again." in printed


def test_gang_whose_worker_hangs_is_restarted_and_the_stacks_name_the_worker(service: Service) -> None:
    service.program(GANG)
    service.config(**local(workers=2))
    words = ("--config", "config.yaml", "--labels", "trainyard_stall_limit=3")
    service.train("hangs_announced", *words, "--", "--announce")
    check_gang_that_stalled_and_was_restarted(service, "hangs_announced")
    stacks = [replica.stacks for replica in detail(service, "hangs_announced").runs[0].replicas]
    assert all("(most recent call first)" in stack for stack in stacks)


@pytest.mark.long
def test_gang_that_announces_nothing_is_inspected_from_outside(service: Service) -> None:
    service.program(GANG)
    service.config(**local(workers=2))
    service.train("hangs_silently", "--config", "config.yaml", "--labels", "trainyard_stall_limit=3")
    check_gang_that_stalled_and_was_restarted(service, "hangs_silently")
    stacks = [replica.stacks for replica in detail(service, "hangs_silently").runs[0].replicas]
    assert all("\nThread " in stack for stack in stacks)
