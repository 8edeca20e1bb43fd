"""Settings that depend on each other."""

from pathlib import Path

import pytest

from trainyard_server.config.settings import Settings


@pytest.mark.parametrize("lease_s", [2.0, 10.0, 70.0, 600.0])
@pytest.mark.parametrize("grace_s", [0.0, 2.0, 30.0])
def test_long_poll_is_shorter_than_the_lease(lease_s: float, grace_s: float) -> None:
    settings = Settings(data_dir=Path(), lease_s=lease_s, grace_s=grace_s)
    assert settings.longest_hold_s <= settings.lease_s / 4  # an agent stops nothing before a half
    assert settings.longest_hold_s < settings.silent_after_s
    assert Settings(data_dir=Path()).longest_hold_s == 20.0
