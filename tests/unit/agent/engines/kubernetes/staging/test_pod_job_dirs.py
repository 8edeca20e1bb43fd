"""The directory of a volume a pod gets for a job-dir."""

import pytest

from contract.runtimes.runtime_labs import order
from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import JobDirClaim, PodJobDirs
from trainyard_agent.staging.base import StagingFailed
from trainyard_agent.staging.job_dirs import JobDirMount
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.wire.sync import RunOrder

CLAIMS = (JobDirClaim.parse("shared=/mnt/jobs"), JobDirClaim.parse("fast=/mnt/jobs/fast"))


def order_of(job_dir: str, chosen: str = "") -> RunOrder:
    run = order("1" * 32, "master-replica-0")
    return run.model_copy(update={"training_input": TrainingInput(job_dir=job_dir), "job_dir": chosen, "owner": "ann"})


def test_pod_has_its_own_directory_of_the_claim_alone() -> None:
    table: dict[tuple[str, bool], JobDirMount | None] = {  # the job-dir, and whether there is one user
        ("/mnt/jobs/p/ann/a/b", False): JobDirMount("shared/p/ann/a", "/mnt/jobs/p/ann/a"),
        ("/mnt/jobs/a/./b/", True): JobDirMount("shared/a/b", "/mnt/jobs/a/b"),
        ("/mnt/jobs/fast/x", True): JobDirMount("fast/x", "/mnt/jobs/fast/x"),
        ("gs://bucket/a", False): None,
        ("", False): None,
    }
    found = {one: PodJobDirs(CLAIMS, one[1]).mount(order_of(one[0])) for one in table}
    assert found == table


def test_directory_that_the_service_has_chosen_is_mounted_where_a_claim_has_it() -> None:
    assert PodJobDirs(CLAIMS).mount(order_of("", "/mnt/jobs/p/ann/job")) == JobDirMount(
        "shared/p/ann/job", "/mnt/jobs/p/ann/job"
    )
    assert PodJobDirs(CLAIMS).mount(order_of("", "/srv/p/ann/job")) is None


def test_directory_of_another_job_is_mounted_where_a_claim_has_it_for_its_owner() -> None:
    order = order_of("/mnt/jobs/p/ann/a")
    claims = PodJobDirs(CLAIMS)
    assert claims.mount(order, "/mnt/jobs/fast/p/ann/b") == JobDirMount("fast/p/ann/b", "/mnt/jobs/fast/p/ann/b")
    assert claims.mount(order, "gs://bucket/b") is None
    assert claims.mount(order, "/srv/p/ann/b") is None
    assert claims.mount(order, "/mnt/jobs/p/bob/b") is None
    assert claims.mount(order, "/mnt/jobs/p/ann/../bob/b") is None


def test_every_other_directory_is_refused() -> None:
    table = [
        ((), False, "/mnt/jobs/p/ann/a", "use gs://"),
        (CLAIMS, False, "/mnt/jobs/p/bob/a", "below /mnt/jobs/p/ann, /mnt/jobs/fast/p/ann"),
        (CLAIMS, False, "/mnt/jobs/p/ann", "below /mnt/jobs/p/ann"),
        (CLAIMS, False, "/mnt/jobs/p/ann/../bob/a", "below /mnt/jobs/p/ann"),
        (CLAIMS, True, "/mnt/jobs/a/../../x", "below /mnt/jobs"),
        (CLAIMS, True, "/mnt/jobs", "below /mnt/jobs"),
        (CLAIMS, True, "/etc", "below /mnt/jobs"),
        (CLAIMS, True, "mnt/jobs/a", "below /mnt/jobs"),
    ]
    for claims, one_user, job_dir, says in table:
        with pytest.raises(StagingFailed) as refused:
            PodJobDirs(claims, one_user).mount(order_of(job_dir))
        assert says in refused.value.staging.message, job_dir


def test_claim_is_a_name_and_a_directory() -> None:
    for wrong in ("shared", "shared=", "shared=/", "shared=mnt", "shared=/mnt/../etc", "a/b=/mnt", "a=/mnt/"):
        with pytest.raises(ValueError, match="must look like CLAIM=/mnt/jobs"):
            JobDirClaim.parse(wrong)
