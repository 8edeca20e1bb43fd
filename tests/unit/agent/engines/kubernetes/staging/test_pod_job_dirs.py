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
    return run.model_copy(
        update={"training_input": TrainingInput(job_dir=job_dir), "job_dir": chosen, "owner": "ann"}
    )


@pytest.mark.parametrize(
    ("job_dir", "one_user", "mount"),
    [
        ("/mnt/jobs/p/ann/a/b", False, JobDirMount("shared/p/ann/a", "/mnt/jobs/p/ann/a")),
        ("/mnt/jobs/a/./b/", True, JobDirMount("shared/a/b", "/mnt/jobs/a/b")),
        ("/mnt/jobs/fast/x", True, JobDirMount("fast/x", "/mnt/jobs/fast/x")),
        ("gs://bucket/a", False, None),
        ("", False, None),
    ],
)
def test_pod_has_its_own_directory_of_the_claim_alone(
    job_dir: str, one_user: bool, mount: JobDirMount | None
) -> None:
    assert PodJobDirs(CLAIMS, one_user).mount(order_of(job_dir)) == mount


def test_directory_that_the_service_has_chosen_is_mounted_where_a_claim_has_it() -> None:
    assert PodJobDirs(CLAIMS).mount(order_of("", "/mnt/jobs/p/ann/job")) == JobDirMount(
        "shared/p/ann/job", "/mnt/jobs/p/ann/job"
    )
    assert PodJobDirs(CLAIMS).mount(order_of("", "/srv/p/ann/job")) is None


@pytest.mark.parametrize(
    ("claims", "one_user", "job_dir", "says"),
    [
        ((), False, "/mnt/jobs/p/ann/a", "use gs://"),
        (CLAIMS, False, "/mnt/jobs/p/bob/a", "below /mnt/jobs/p/ann, /mnt/jobs/fast/p/ann"),
        (CLAIMS, False, "/mnt/jobs/p/ann", "below /mnt/jobs/p/ann"),
        (CLAIMS, False, "/mnt/jobs/p/ann/../bob/a", "below /mnt/jobs/p/ann"),
        (CLAIMS, True, "/mnt/jobs/a/../../x", "below /mnt/jobs"),
        (CLAIMS, True, "/mnt/jobs", "below /mnt/jobs"),
        (CLAIMS, True, "/etc", "below /mnt/jobs"),
        (CLAIMS, True, "mnt/jobs/a", "below /mnt/jobs"),
    ],
)
def test_every_other_directory_is_refused(
    claims: tuple[JobDirClaim, ...], one_user: bool, job_dir: str, says: str
) -> None:
    with pytest.raises(StagingFailed) as refused:
        PodJobDirs(claims, one_user).mount(order_of(job_dir))
    assert says in refused.value.staging.message


def test_claim_is_a_name_and_a_directory() -> None:
    for wrong in ("shared", "shared=", "shared=/", "shared=mnt", "shared=/mnt/../etc", "a/b=/mnt", "a=/mnt/"):
        with pytest.raises(ValueError, match="must look like CLAIM=/mnt/jobs"):
            JobDirClaim.parse(wrong)
