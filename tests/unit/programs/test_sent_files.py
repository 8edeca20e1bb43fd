"""Programs that somebody else has sent: what is refused of their tars, their plan, and that nothing of them is run."""

import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.api.tars import tar_of
from trainyard_programs.packing import pack
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


GUARD = b'if __name__ == "__main__":\n    print("ran")\n'


def packed(scratch: Path, files: Mapping[str, bytes], entry: str = "") -> dict[str, Any]:
    scratch.mkdir()
    (scratch / "sent.tar").write_bytes(tar_of(files))
    return pack(scratch, "sent.tar", entry, 10**6)


PROGRAMS: Mapping[str, tuple[Mapping[str, bytes], str, str, tuple[str, ...]]] = {
    "a script": ({"train.py": b"1"}, "", "python train.py", ("train.py",)),
    "files, by the name": ({"train.py": b"1", "util.py": b"1"}, "", "python train.py", ("train.py", "util.py")),
    "a folder": ({"p/go.py": b"1"}, "", "python go.py", ("go.py",)),
    "a package": ({"p/__init__.py": b"", "p/task.py": b"from . import x", "p/x.py": b""}, "", "python -m p.task",
     ("p.task", "p.x")),
    "a module of it": ({"p/__init__.py": b"", "p/task.py": b"1"}, "p.task", "python -m p.task", ("p.task",)),
    "a package in a folder": ({"f/p/__init__.py": b"", "f/p/task.py": b"1", "f/setup.py": b"1",
     "f/tests/test_a.py": b"1"}, "", "python -m p.task", ("p.task",)),
    "a package that runs": ({"p/__init__.py": b"", "p/__main__.py": b"1"}, "", "python -m p", ("p",)),
    "of src": ({"f/src/p/__init__.py": b"", "f/src/p/m.py": b"1", "f/a.md": b""}, "", "python -m p.m", ("p.m",)),
    "a script below": ({"f/tools/go.sh": b"echo 1\n", "f/README": b""}, "", "bash tools/go.sh", ("tools/go.sh",)),
    "by its guard": ({"a.py": GUARD, "b.py": b"1"}, "", "python a.py", ("a.py", "b.py")),
    "none of several": ({"a.py": b"1", "b.py": b"1"}, "", "", ("a.py", "b.py")),
    "the chosen file": ({"a.py": b"1", "b.py": b"1"}, "b.py", "python b.py", ("a.py", "b.py")),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_found_among_the_files(tmp_path: Path, name: str) -> None:
    files, entry, command, entries = PROGRAMS[name]
    result = packed(tmp_path / "scratch", files, entry)
    assert tuple(result["entries"]) == entries
    if not command:
        assert result["problem"] == "Several files could start the program: choose the one to run."
        return
    assert " ".join(result["command"]) == command
    assert result["entry"] in entries
    with zipfile.ZipFile(tmp_path / "scratch" / result["wheel"]) as wheel:
        manifest = json.loads(wheel.read("trainyard_program/program.json"))
    assert (manifest["module"], manifest["kind"]) == (result["module"], manifest["kind"])


PROBLEMS: Mapping[str, tuple[Mapping[str, bytes], str, str]] = {
    "no file": ({"data.csv": b"1"}, "", "There is nothing to run: no Python file (.py), shell script"),
    "syntax": ({"p/train.py": b"x = 1\nx = (\n"}, "", "p/train.py:2: "),
    "path of the machine": ({"train.py": b"1"}, "/etc/passwd", "/etc/passwd is not a file of the program"),
    "path above": ({"train.py": b"1"}, "../sent.tar", "../sent.tar is not a file of the program"),
    "requirements above": ({"train.py": b"1", "requirements.txt": b"-r ../../etc/passwd\n"}, "",
     "requirements.txt:1: ../../etc/passwd is outside"),
    "credentials": ({"train.py": b"1", "requirements.txt": b"--index-url https://ana:secret@host/simple\n"}, "",
     "requirements.txt:1: has credentials"),
    "deep source": ({"train.py": b"(" * 100_000 + b")" * 100_000}, "", "train.py"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_program_that_could_not_run_has_a_problem_in_its_own_paths(tmp_path: Path, name: str) -> None:
    files, entry, message = PROBLEMS[name]
    result = packed(tmp_path / "scratch", files, entry)
    assert message in result["problem"]
    assert str(tmp_path) not in result["problem"]


def test_what_else_is_on_the_machine_decides_nothing(tmp_path: Path) -> None:
    """Neither whether a file is there, nor what git and a project above say."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'above'\nversion = '1'\ndependencies = ['six']\n")
    (tmp_path / "there").mkdir()
    up = "a/../../../there"
    files = {"train.py": b"open('../../pyproject.toml')", "requirements.txt": f"{up}\n".encode()}
    there, elsewhere = (
        packed(tmp_path / name, {key: value.replace(b"there", word) for key, value in files.items()})
        for name, word in (("first", b"there"), ("second", b"gone1"))
    )
    assert there == elsewhere
    assert (there["installs"], there["notes"]) == (("requirements.txt",), [])


def test_repository_among_the_files_is_never_asked(tmp_path: Path) -> None:
    """Each of these makes git, or a shell that starts, run a command."""
    touched = tmp_path / "touched"
    config = f"[core]\n\tfsmonitor = touch {touched}\n\tsshCommand = touch {touched}\n\tbare = false\n".encode()
    repository = {"HEAD": b"ref: refs/heads/main\n", "config": config, "objects/x": b"", "refs/x": b"", "index": b""}
    files = {
        "p/run.sh": f"touch {touched}\n".encode(),
        "p/setup.py": f"open({str(touched)!r}, 'w')\n".encode(),
        "p/sitecustomize.py": f"open({str(touched)!r}, 'w')\n".encode(),
        **{f"p/.git/{name}": content for name, content in repository.items()},
        **{f"p/bare/{name}": content for name, content in repository.items()},
        "p/sub/.git": b"gitdir: ../bare\n",
        "p/.gitignore": b"run.sh\n",
    }
    result = packed(tmp_path / "scratch", files, "run.sh")
    assert result["command"] == ("bash", "run.sh")
    assert "run.sh" in {file["name"] for file in result["files"]}, "no rule of git leaves it out"
    assert not any(".git/" in file["name"] for file in result["files"])
    assert not touched.exists()


@pytest.mark.parametrize(
    ("request_", "says"),
    [({"mostBytes": 10}, {"error": "The files of the program are larger than the limit of 10 B.", "isTooLarge": True}),
     ({"tar": "gone"},
     {"error": "The server cannot store the program: No such file or directory.", "isOfServer": True})],
)  # fmt: skip
def test_process_answers_with_an_error(tmp_path: Path, request_: dict[str, Any], says: dict[str, Any]) -> None:
    (tmp_path / "sent.tar").write_bytes(tar_of({"train.py": b"print(1111111)"}))
    request = {"scratch": str(tmp_path), "tar": "sent.tar", "entry": "", "mostBytes": 1000} | request_
    words = (sys.executable, "-I", "-m", "trainyard_programs.packing")
    done = subprocess.run(words, input=json.dumps(request), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == says
