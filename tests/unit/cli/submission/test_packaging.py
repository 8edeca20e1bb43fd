import errno
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard_cli.submission import packaging
from trainyard_protocol.errors import InvalidArgument

NEEDS = ["Requires-Dist: numpy>=2", "Requires-Dist: tqdm"]
PYPROJECT = """\
[build-system]
requires = ["{0}"]
build-backend = "{0}"
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    directory = tmp_path / "project" / "trainer"
    (directory / "layers").mkdir(parents=True)
    (directory / "__init__.py").touch()
    (directory / "task.py").write_text("print('hello')\n")
    (directory / "words.txt").write_text("one\n")
    (directory / "layers" / "__init__.py").touch()
    return directory


def names(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as wheel:
        return set(wheel.namelist())


def tree(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidArgument) as caught:
        call()
    return caught.value.message


def build(package: Path) -> None:
    with packaging.build(package):
        pass


def test_build_without_a_setup_makes_trainer_0_0_0_with_everything(package: Path, tmp_path: Path) -> None:
    """Also where a pyproject names no build system, and by a link. The user's tree stays as it is."""
    for name in ("__pycache__", ".git"):
        (package / name).mkdir()
        (package / name / "x.py").touch()
    (package.parent / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    before = tree(package.parent)
    (tmp_path / "link").symlink_to(package)
    with packaging.build(tmp_path / "link") as archive:
        assert archive.path.name == "trainer-0.0.0-py3-none-any.whl"
        found = names(archive.path)
        assert {"trainer/task.py", "trainer/words.txt", "trainer/layers/__init__.py"} <= found
        assert not [name for name in found if "__pycache__" in name or ".git" in name]
    assert not archive.path.exists()
    assert tree(package.parent) == before


def test_build_of_the_same_source_twice_is_the_same_file(package: Path) -> None:
    with packaging.build(package) as first:
        digest, content = first.sha256, first.path.read_bytes()
    (package / "task.py").touch()
    with packaging.build(package) as second:
        assert second.sha256 == digest
        assert second.path.read_bytes() == content
    (package / "task.py").write_text("print('bye')\n")
    with packaging.build(package) as third:
        assert third.sha256 != digest


def test_build_with_its_own_setup_uses_that(package: Path) -> None:
    (package.parent / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='mine', version='1.2', packages=['trainer'])\n"
    )
    with packaging.build(package) as archive:
        assert archive.path.name == "mine-1.2.tar.gz"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "pyproject.toml",
            PYPROJECT.format("no_such_backend"),
            ("It needs no_such_backend, which is not installed", "--packages"),
        ),
        ("pyproject.toml", "[project\n", ("pyproject.toml: ",)),
        ("setup.py", "raise SystemExit('the setup is broken')\n", ("    the setup is broken",)),
    ],
)
def test_build_that_its_own_files_make_impossible_says_why(
    package: Path, name: str, text: str, says: tuple[str, ...]
) -> None:
    (package.parent / name).write_text(text)
    message = refusal(lambda: build(package))
    assert all(part in message for part in says), message
    assert "is not a valid directory" in refusal(lambda: build(package / "none"))


def test_build_without_init_has_one_in_the_archive_and_the_requirements(package: Path) -> None:
    (package / "__init__.py").unlink()
    (package / "layers" / "__init__.py").unlink()
    (package / "layers" / "dense.py").touch()
    with packaging.build(package, ["numpy>=2", "tqdm"]) as archive:
        assert {"trainer/__init__.py", "trainer/layers/dense.py"} <= names(archive.path)
        with zipfile.ZipFile(archive.path) as wheel:
            about = wheel.read("trainer-0.0.0.dist-info/METADATA").decode()
        assert about.splitlines()[1:] == ["Name: trainer", "Version: 0.0.0", *NEEDS]
    assert not (package / "__init__.py").exists()


def test_build_with_a_file_that_cannot_be_read_names_it(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: os.PathLike[str], *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(source))

    monkeypatch.setattr(shutil, "copyfile", refused)
    message = refusal(lambda: build(package))
    assert message.startswith(f"{package} cannot be packaged: Permission denied: '{package}/")


def test_build_of_a_name_that_no_distribution_may_have_keeps_that_of_the_module(tmp_path: Path) -> None:
    (tmp_path / "_größe").mkdir()
    with packaging.build(tmp_path / "_größe") as archive:
        assert archive.path.name == "gr_e-0.0.0-py3-none-any.whl"
        assert "_größe/__init__.py" in names(archive.path)


def test_check_archive_of_what_is_none_is_refused(tmp_path: Path) -> None:
    for name in ("a.txt", "trainer-1.0.tar.gz", "trainer-1.0.whl"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    rows = {
        "a.txt": ".tar.gz, .tgz, .zip, .whl",
        "none.tar.gz": "No such file",
        "trainer-1.0.tar.gz": "is no archive, whatever its name.",
        "trainer-1.0.whl": "is no archive, whatever its name.",
    }
    for name, says in rows.items():
        with pytest.raises(InvalidArgument) as caught:
            packaging.check_archive(tmp_path / name)
        assert says in caught.value.message
