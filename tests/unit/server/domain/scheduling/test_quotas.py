from pathlib import Path

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_server.config.quota_file import load_quotas
from trainyard_server.domain.images import AllowedImages
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.scheduler import plan
from unit.server.domain.scheduling.queue_support import NOW, agent, held, placed, queued

FOUR = Quotas({}, {"p": {"vcpus": 4}})


def test_job_above_what_is_left_of_the_quota_waits_and_says_so() -> None:
    busy = agent(cpus=16, gb=64, gangs=(held(0, 1, 2),))
    result = plan([queued(1, cpus=2)], [busy], NOW, FOUR)
    assert placed(result) == []
    assert result.waiting[1].kind == "quota"
    assert result.waiting[1].reason == "project p uses 3 of its 4 vCPU; the job needs 2"


def test_job_that_waits_for_its_quota_holds_back_nobody_of_another_project() -> None:
    busy = agent(cpus=16, gb=64, gangs=(held(0, 1, 2),))
    jobs = [queued(1, 2, cpus=1, age=9), queued(2, cpus=13, project="other")]
    assert placed(plan(jobs, [busy], NOW, FOUR)) == [2]


def test_smaller_job_passes_one_that_waits_for_the_same_quota_only_if_it_cannot_delay_it() -> None:
    busy = agent(cpus=16, gb=64, gangs=(held(0, 1),))
    passed, delayed = queued(1, cpus=3, age=9), queued(2, cpus=4, age=9)
    assert placed(plan([passed, queued(3)], [busy], NOW, FOUR)) == [3]
    result = plan([delayed, queued(3)], [busy], NOW, FOUR)
    assert placed(result) == []
    assert result.waiting[3].kind == "quota"
    assert result.waiting[3].reason == (
        "what is left of the quota of project p is reserved for its jobs ahead; 1 job ahead"
    )


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"jobs": 1}, "project p uses 1 of its 1 running jobs; the job needs 1"),
        ({"gpus": 2}, "project p uses 2 of its 2 GPUs; the job needs 1"),
        ({"A": 1}, "project p uses 1 of its 1 A; the job needs 1"),
    ],
)
def test_jobs_and_devices_and_devices_of_a_type_are_counted(limits: dict[str, int], message: str) -> None:
    host = agent(cpus=16, gb=64, gpus=("A", "B", "A"), gangs=(held(0, gpus=("laptop-0", "laptop-1")),))
    job = queued(1, gpus=1, kind="A")
    assert placed(plan([job], [host], NOW, Quotas({"B": 0}))) == [1]
    assert plan([job], [host], NOW, Quotas(limits)).waiting[1].reason == message


def test_file_lays_a_projects_limits_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text(
        "default: {vcpus: 64, runningJobs: 20, accelerators: {nvidia_t4: 2}}\n"
        "projects:\n  vision: {vcpus: 128, runningJobs: null, gpus: 4, accelerators: {NVIDIA_P4: 0}}\n"
    )
    quotas, _ = load_quotas(file)
    assert quotas.of("anybody") == {"vcpus": 64, "jobs": 20, "NVIDIA_T4": 2}
    assert quotas.of("vision") == {"vcpus": 128, "gpus": 4, "NVIDIA_T4": 2, "NVIDIA_P4": 0}
    file.write_text("")
    assert load_quotas(file) == load_quotas(None) == (Quotas(), AllowedImages())


def test_file_has_the_images_of_a_project_instead_of_the_default_ones(tmp_path: Path) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text(
        "default: {images: [a/*]}\nprojects: {p: {images: [b/*]}, q: {vcpus: 1}, r: {images: null}, s: {images: []}}\n"
    )
    _, images = load_quotas(file)
    refused = {(project, name) for project in "pqrs" for name in ("a/x", "b/x") if images.refusal(project, name)}
    assert refused == {("p", "a/x"), ("q", "b/x"), ("s", "a/x"), ("s", "b/x")}
    assert images.refusal("other", "b/x") == (
        "b/x is not an image that jobs of project other may bring; allowed are a/*."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: {vcpus: 1}\nprojects:\n  a: {vcpus: 2}\n  b:\n    gpus: -1\n", ":5: projects.b.gpus: "),
        ("default:\n  cpus: 4\n", ":2: default.cpus: there is no such entry; allowed: runningJobs, vcpus, "),
        ("projects:\n  a: {accelerators: {T4: many}}\n", ":2: projects.a.accelerators.T4: "),
        ("default:\n  images: [a b]\n", ":2: default.images.0: String should match pattern"),
        ("- 1\n", ":1: the file: "),
        ("a: 1\nb: [", ":2: is not YAML: expected the node content, but found '<stream end>'."),
    ],
)
def test_mistake_in_the_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        load_quotas(file)
    assert caught.value.message.startswith(str(file))
    assert message in caught.value.message
