import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard_programs import archives, program_wheel, programs
from trainyard_programs.files import LeftOut, list_files
from trainyard_programs.programs import Program, Search
from trainyard_protocol.errors import InvalidArgument


def found(directory: Path, path: str = ".", module: str = "") -> Program:
    return programs.find(directory / path, module, Search(current_dir=directory))


def manifest(program: Program) -> dict[str, Any]:
    with program_wheel.build(program) as archive, zipfile.ZipFile(archive.path) as wheel:
        read: dict[str, Any] = json.loads(wheel.read("trainyard_program/program.json"))
        return read


def test_build_of_the_same_files_twice_is_the_same_archive(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    with program_wheel.build(found(tmp_path)) as first:
        assert first.path.name == "trainyard_program-0.0.0-py3-none-any.whl"
        digest, content = first.sha256, first.path.read_bytes()
    assert not first.path.exists()
    (tmp_path / "train.py").touch()
    with program_wheel.build(found(tmp_path)) as second:
        assert (second.sha256, second.path.read_bytes()) == (digest, content)
    (tmp_path / "train.py").write_text("print('bye')\n")
    with program_wheel.build(found(tmp_path)) as third:
        assert third.sha256 != digest


def test_digest_changes_with_what_decides_on_the_dependencies_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "more.txt").write_text("six\n")
    (tmp_path / "requirements.txt").write_text("-r more.txt\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "setup.py").touch()

    def digest() -> str:
        text: str = manifest(found(tmp_path, module="train"))["install"]["digest"]
        return text

    first = digest()
    (tmp_path / "train.py").write_text("print('edited')\n")
    assert digest() == first
    (tmp_path / "more.txt").write_text("six<2\n")
    second = digest()
    assert second != first
    (tmp_path / "more.txt").write_text("./lib\n")
    third = digest()
    (tmp_path / "lib" / "setup.py").write_text("import setuptools\n")
    assert len({first, second, third, digest()}) == 4  # local packages are part of what is installed


def test_summary_is_two_lines_and_counts_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1\n")
    (tmp_path / "requirements.txt").write_text("six\n")
    program = found(tmp_path, module="train")
    names = [".env", "a", "b", "c", "d", "e"]
    left_out = (*(LeftOut(name, "ignored by git") for name in names), LeftOut(".key", "looks like a secret: key"))
    listing = replace(program.listing, left_out=left_out, followed=("data",))
    program = replace(program, listing=listing)
    assert list(program.summary()) == [
        f"Sends 2 files (6 B) of {tmp_path}. Left out: a, b, c, d, 1 more, 1 hidden (ignored by git); 1 hidden file "
        "(looks like a secret: key). --include PATH sends one. Links followed: data.",
        "Runs python train.py after installing requirements.txt.",
    ]
    assert "Left out: .env, a, b, c, d, e (ignored by git); .key (looks" in next(program.summary(names_all=True))
    assert program.plan()["files"] == ["requirements.txt", "train.py"]


def test_build_with_a_file_that_is_gone_names_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "words.txt").touch()
    program = found(tmp_path)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(InvalidArgument, match=r"words.txt cannot be sent: No such file or directory\."):
        manifest(program)
    assert list(list_files(tmp_path).files) == ["train.py"]


def test_check_archive_of_what_is_none_is_refused(tmp_path: Path) -> None:
    for name in ("a.txt", "trainer-1.0.tar.gz", "trainer-1.0.whl"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    rows = {
        "a.txt": ".tar.gz, .tgz, .zip, .whl",
        "none.tar.gz": "No such file",
        "trainer-1.0.tar.gz": "is not an archive, despite its name.",
        "trainer-1.0.whl": "is not an archive, despite its name.",
    }
    for name, says in rows.items():
        with pytest.raises(InvalidArgument) as caught:
            archives.check_archive(tmp_path / name)
        assert says in caught.value.message
