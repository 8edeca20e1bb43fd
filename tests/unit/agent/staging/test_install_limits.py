"""Limits of installations, without an engine."""

import asyncio
from pathlib import Path

import pytest

from trainyard_agent.host import disk
from trainyard_agent.runtimes.installing import InstallLimits
from trainyard_agent.staging.base import StagingFailed
from trainyard_agent.staging.install_limits import within


async def nothing() -> int:
    return 0


async def test_installation_that_takes_too_long_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def install() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(StagingFailed, match=r"took longer than 0\.05 s, the agent's --install-timeout"):
        await within(InstallLimits(seconds=0.05), install(), nothing)
    assert cancelled.is_set()


def test_disk_usage_is_of_what_is_stored_below_and_not_behind_links(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(bytes(1 << 20))
    (tmp_path / "sparse").touch()
    with (tmp_path / "sparse").open("r+b") as file:
        file.truncate(1 << 30)
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    assert 1 << 20 <= disk.usage(tmp_path) < 2 << 20
    assert disk.usage(tmp_path / "missing") == 0
