"""The files of a program, unpacked: nothing leads out of them."""

import tarfile
from pathlib import Path

import pytest

from trainyard_agent.installer.output import Refused
from trainyard_agent.installer.tree import unpack


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def unpacked(directory: Path, *members: tarfile.TarInfo) -> Path:
    directory.mkdir()
    with tarfile.open(directory / "program.tar", "w") as archive:
        for one in members:
            archive.addfile(one)
    unpack(directory / "program.tar", directory / "root")
    return directory / "root"


@pytest.mark.parametrize(
    "members",
    [
        [member("../x")],
        [member("/tmp/x")],
        [member("x", tarfile.SYMTYPE, "../../..")],
        [member("x", tarfile.SYMTYPE, "/etc")],
        [member("x", tarfile.SYMTYPE, "."), member("x/y")],
        [member("d/x", tarfile.SYMTYPE, ".."), member("y", tarfile.SYMTYPE, "d/x/../..")],
        [member("x", tarfile.LNKTYPE, "../../venv/bin/python")],
        [member("x", tarfile.FIFOTYPE)],
    ],
)
def test_archive_that_leads_out_of_its_directory_is_refused(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    with pytest.raises(Refused, match="program"):
        unpacked(tmp_path / "made", *members)
