import errno

import pytest

from trainyard_protocol.health import CheckStatus
from trainyard_server.services.health import descriptors_check
from trainyard_server.storage import descriptors
from trainyard_server.web_server import most_connections


@pytest.mark.parametrize(("limit", "most"), [(16_384, 14_746), (1024, 896), (160, 80), (1, 1)])
def test_some_descriptors_are_kept_for_files(limit: int, most: int) -> None:
    assert most_connections(limit) == most


def test_descriptors_are_counted_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null") as _:  # noqa: PTH123
        used = descriptors.used()
    assert descriptors.used() < used
    monkeypatch.setattr(descriptors, "used", lambda: 80)
    monkeypatch.setattr(descriptors, "limit", lambda: 100)
    assert descriptors_check().status is CheckStatus.OK
    monkeypatch.setattr(descriptors, "used", lambda: 81)
    check = descriptors_check()
    assert (check.status, check.message) == (
        CheckStatus.DEGRADED,
        "81 of 100 file descriptors are in use: new connections are refused soon",
    )


@pytest.mark.parametrize(
    ("error", "exhausted"),
    [(OSError(errno.EMFILE, ""), True), (OSError(errno.ENOENT, ""), False), (None, False)],
)
def test_which_errors_say_that_no_descriptor_is_left(error: OSError | None, exhausted: bool) -> None:
    assert descriptors.is_exhausted(error) is exhausted
