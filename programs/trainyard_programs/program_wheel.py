"""Wheel of a program: its files as they are, in a tar, with the launcher that starts them and a manifest.

The distribution has one name for all programs, by which the agent knows it: `python -m trainyard_program MODULE` starts
the program, and the steps of the manifest install what it needs. Nothing is built here.
"""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainyard_programs import wheels
from trainyard_programs.archives import Archive, check_archive
from trainyard_programs.files import ProgramFile
from trainyard_programs.programs import Program
from trainyard_protocol.errors import InvalidArgument, shown

NAME = "trainyard_program"

_EPOCH = 315_532_800  # 1980-01-01, as in the wheel: the same files give the same archive
_MAX_LEFT_OUT = 200


@contextmanager
def build(program: Program, beside: Mapping[str, bytes] | None = None) -> Iterator[Archive]:
    """Build the wheel in a temporary directory, with the files `beside` its launcher. Raises InvalidArgument for a file
    that cannot be read."""
    with TemporaryDirectory(prefix="trainyard-program-") as scratch:
        tar = Path(scratch, "files.tar")
        write_files(tar, program.listing.files, program.listing.empty)
        manifest = json.dumps(describe(program, tar), indent=1).encode()
        entries: dict[str, bytes | Path] = {
            f"{NAME}/__init__.py": b"",
            f"{NAME}/__main__.py": _source("launcher.py"),
            **({f"{NAME}/notebook.py": _source("notebook.py")} if program.kind == "notebook" else {}),
            **{f"{NAME}/{name}": content for name, content in (beside or {}).items()},
            f"{NAME}/program.json": manifest,
            f"{NAME}/files.tar": tar,
        }
        yield check_archive(wheels.write(Path(scratch), NAME, entries))


def describe(program: Program, tar: Path) -> dict[str, Any]:
    """The manifest, with the digest of all that decides on what is installed."""
    left_out = program.listing.left_out[:_MAX_LEFT_OUT]
    return {
        "version": 1,
        "module": program.module,
        "kind": program.kind,
        "entry": program.entry,
        "directory": program.directory,
        "path": program.python_path,
        "interpreter": program.interpreter,
        "passes_job_dir": program.passes_job_dir,
        "uploaded": program.uploaded,
        "left_out": [{"name": shown(each.name), "reason": each.reason} for each in left_out],
        "install": {"digest": _digest(program, tar), "steps": program.steps},
    }


def write_files(tar: Path, files: Mapping[str, ProgramFile], empty: tuple[str, ...] = ()) -> None:
    """Write a tar of files as they are, with fixed times and owners. Raises InvalidArgument for one that cannot be
    read."""
    with tarfile.open(tar, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as archive:
        for name in empty:
            archive.addfile(_member(name, tarfile.DIRTYPE, 0o755))
        for name, file in sorted(files.items()):
            if file.link:
                member = _member(name, tarfile.SYMTYPE, 0o777)
                member.linkname = file.link
                archive.addfile(member)
                continue
            try:
                with file.path.open("rb") as content:
                    member = _member(name, tarfile.REGTYPE, file.mode)
                    member.size = file.path.stat().st_size
                    archive.addfile(member, content)
            except OSError as error:
                reason = error.strerror or "it was changed meanwhile"
                raise InvalidArgument(f"{shown(str(file.path))} cannot be sent: {reason}.") from error


def _member(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = kind, mode, _EPOCH
    return member


def _digest(program: Program, tar: Path) -> str:
    """The SHA-256 of the steps before that of the project itself, and of the files that they read: of all files where
    the declarations name packages among them."""
    steps = [step for step in program.steps if step["what"] != "project"]
    digest = hashlib.sha256(json.dumps(steps, sort_keys=True).encode())
    if program.installs_local:
        with tar.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
        return digest.hexdigest()
    for name in program.declared:
        file = program.listing.files.get(name)
        digest.update(os.fsencode(name))
        digest.update(b"" if file is None or file.link else file.path.read_bytes())
    return digest.hexdigest()


def _source(name: str) -> bytes:
    """The source of a module that runs in the job."""
    return Path(__file__).with_name("inside").joinpath(name).read_bytes()
