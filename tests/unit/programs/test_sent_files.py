"""Tars of somebody else: what is unpacked, and what is refused before anything of it is used."""

import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from integration.api.tars import tar_of
from trainyard_programs.sent_files import unpack
from trainyard_protocol.errors import InvalidArgument, TooLarge, TrainyardError

LONG = "数" * 60 + "/" + "x" * 120 + ".py"


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    return member(name, kind, size=size).tobuf(tarfile.GNU_FORMAT)


END = bytes(1024)
WHOLE = tar_of({"train.py": b"print(1)"})
ATTACKS: Mapping[str, tuple[bytes, str]] = {
    "no tar": (b"a program", "not a whole tar: truncated header"),
    "empty body": (b"", "not a whole tar: empty header"),
    "compressed": (b"\x1f\x8b" + bytes(600), "not a whole tar"),
    "wrong checksum": (b"x" + WHOLE[1:], "not a whole tar: bad checksum"),
    "truncated in a file": (WHOLE[:515], "ends inside of train.py"),
    "truncated in a header": (WHOLE[:1024] + header("b.py")[:300], "not a whole tar: truncated header"),
    "without an end": (WHOLE[:1024], "not a whole tar: empty header"),
    "rubbish after a file": (WHOLE[:1024] + b"x" * 512 + END, "not a whole tar"),
    "huge declared size": (header("train.py", size=2**40) + END, "larger than the limit"),
    "negative size": (header("a")[:124] + b"\xff" * 12 + header("a")[136:] + END, "not a whole tar"),
    "symbolic link": (tar_of({}, member("a", tarfile.SYMTYPE, "/etc")), "a is a symbolic link"),
    "hard link": (tar_of({"b": b""}, member("a", tarfile.LNKTYPE, "b")), "a is a hard link"),
    "device": (tar_of({}, member("a", tarfile.CHRTYPE)), "a is a device"),
    "pipe": (tar_of({}, member("a", tarfile.FIFOTYPE)), "a is a pipe"),
    "sparse file": (header("a", tarfile.GNUTYPE_SPARSE, 10) + END, "a is neither a file nor a directory"),
    "pax header": (header("a", tarfile.XHDTYPE) + END, "a is neither a file nor a directory"),
    "parent": (tar_of({"../a.py": b""}), "../a.py is not the relative path of a file"),
    "parent inside": (tar_of({"a/../../b": b""}), "is not the relative path of a file"),
    "absolute path": (tar_of({"/etc/cron.d/a": b""}), "/etc/cron.d/a is not the relative path"),
    "empty name": (header("") + END, "An empty name is not the relative path"),
    "control character": (tar_of({"a\n.py": b""}), "a\\n.py is not the relative path"),
    "turned text": (tar_of({"a\u202e.py": b""}), "a\\u202e.py is not the relative path"),
    "bytes that are no text": (header("\udcff.py") + END, "\\udcff.py is not the relative path"),
    "parent in a long name": (tar_of({"../" + "a" * 200: b""}), "is not the relative path of a file"),
    "huge long name": (header("././@LongLink", tarfile.GNUTYPE_LONGNAME, 2**40) + END, "more than 1,024 bytes"),
    "long part": (tar_of({"a" * 256: b""}), "255 bytes each at most"),
    "deep path": (tar_of({"a/" * 41 + "b": b""}), "a path has at most 40 parts"),
    "file twice": (tar_of({"a": b""}, member("a")), "a is sent twice"),
    "file in a file": (tar_of({"a": b"", "a/b": b""}), "a/b is sent twice"),
    "directory of a file": (tar_of({"a/b": b"", "a": b""}), "a is sent twice"),
    "too many files": (tar_of({str(number): b"" for number in range(11)}), "at most 10 files"),
    "too many directories": (tar_of({}, *(member(f"{n}", tarfile.DIRTYPE) for n in range(11))), "at most 10 files"),
    "too many bytes": (tar_of({"a": bytes(600), "b": bytes(600)}), "larger than the limit of 1.0 kB"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_tar_that_is_no_program_is_refused(tmp_path: Path, name: str) -> None:
    body, message = ATTACKS[name]
    (tmp_path / "sent.tar").write_bytes(body)
    (tmp_path / "inside" / "files").mkdir(parents=True)
    with pytest.raises(TrainyardError) as raised:
        unpack(tmp_path / "sent.tar", tmp_path / "inside" / "files", most_bytes=1000, most_files=10)
    assert message in raised.value.message
    assert isinstance(raised.value, InvalidArgument | TooLarge)
    assert {path.name for path in tmp_path.iterdir()} == {"sent.tar", "inside"}
    assert [path.name for path in (tmp_path / "inside").iterdir()] == ["files"], "nothing is beside the directory"


def test_plain_files_are_unpacked_by_their_names(tmp_path: Path) -> None:
    files = {"train.py": b"print(1)", f"data/{LONG}": b"x" * 513, "empty": b"", "very/deep/file": b"y" * 512}
    executable = member("run")
    executable.mode = 0o4755
    body = tar_of(files, member("logs", tarfile.DIRTYPE, size=7), member("logs/", tarfile.DIRTYPE), executable)
    (tmp_path / "sent.tar").write_bytes(body)
    top = tmp_path / "files"
    top.mkdir()
    unpack(tmp_path / "sent.tar", top, most_bytes=2000)
    found = {str(path.relative_to(top)): path for path in top.rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in found.items()} == {**files, "run": b""}
    assert (top / "logs").is_dir()
    assert {name: oct(path.stat().st_mode & 0o7777) for name, path in found.items() if name in ("run", "empty")} == {
        "run": "0o755",
        "empty": "0o644",
    }
