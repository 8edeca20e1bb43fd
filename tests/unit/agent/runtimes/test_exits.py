from trainyard_agent.runtimes.exits import blamed_on_disk
from trainyard_protocol.states import Reason


def test_full_disk_is_the_machines_fault_whoever_tells_of_it() -> None:
    full = "/data has less than 250 MB left"
    pip = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    read_only = "error: could not create 'build': Read-only file system"
    cases = (
        (Reason.PACKAGES_FAILED, pip, full, Reason.HOST_FAILED, f"{full}. {pip}"),
        (Reason.PACKAGES_FAILED, pip, "", Reason.HOST_FAILED, pip),
        (Reason.IMAGE_FAILED, "write: disk quota exceeded", "", Reason.HOST_FAILED, None),
        (Reason.START_FAILED, read_only, full, Reason.HOST_FAILED, None),
        # A package may write where it should not, on a machine whose disks are fine.
        (Reason.PACKAGES_FAILED, read_only, "", Reason.PACKAGES_FAILED, read_only),
        (Reason.PACKAGES_FAILED, "No matching distribution", full, Reason.PACKAGES_FAILED, None),
        (Reason.SECRETS_FAILED, "No space left on device", full, Reason.SECRETS_FAILED, None),
    )
    wrong = [
        (case, got)
        for case in cases
        if (got := blamed_on_disk(*case[:3]))[0] is not case[3] or case[4] not in (None, got[1])
    ]
    assert wrong == []
