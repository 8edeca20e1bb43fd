import errno
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard_cli.submission import packaging
from trainyard_protocol.errors import InvalidArgument

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
    with tarfile.open(archive) as tar:
        return {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}


def tree(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidArgument) as caught:
        call()
    return caught.value.message


def build(package: Path) -> None:
    with packaging.build(package):
        pass


def test_build_without_a_setup_makes_trainer_0_0_0_with_everything(package: Path) -> None:
    with packaging.build(package) as archive:
        assert archive.path.name == "trainer-0.0.0.tar.gz"
        assert {"trainer/task.py", "trainer/words.txt", "trainer/layers/__init__.py"} <= names(archive.path)
    assert not archive.path.exists()


def test_build_leaves_the_users_tree_alone(package: Path) -> None:
    before = tree(package.parent)
    build(package)
    assert tree(package.parent) == before


def test_build_of_the_same_source_twice_is_the_same_file(package: Path) -> None:
    with packaging.build(package) as first:
        digest, content = first.sha256, first.path.read_bytes()
    (package / "task.py").touch()
    with packaging.build(package) as second:
        assert second.sha256 == digest
        assert second.path.read_bytes() == content


def test_build_of_a_changed_source_is_another_file(package: Path) -> None:
    with packaging.build(package) as first:
        digest = first.sha256
    (package / "task.py").write_text("print('bye')\n")
    with packaging.build(package) as second:
        assert second.sha256 != digest


def test_build_leaves_out_caches_and_hidden_directories(package: Path) -> None:
    for name in ("__pycache__", ".git"):
        (package / name).mkdir()
        (package / name / "x.py").touch()
    with packaging.build(package) as archive:
        assert not [name for name in names(archive.path) if "__pycache__" in name or ".git" in name]


def test_build_with_its_own_setup_uses_that(package: Path) -> None:
    (package.parent / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='mine', version='1.2', packages=['trainer'])\n"
    )
    with packaging.build(package) as archive:
        assert archive.path.name == "mine-1.2.tar.gz"


def test_build_ignores_a_pyproject_without_a_build_system(package: Path) -> None:
    (package.parent / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    with packaging.build(package) as archive:
        assert archive.path.name == "trainer-0.0.0.tar.gz"


def test_build_with_a_backend_that_is_not_installed_gives_advice(package: Path) -> None:
    (package.parent / "pyproject.toml").write_text(PYPROJECT.format("no_such_backend"))
    message = refusal(lambda: build(package))
    assert "It needs no_such_backend, which is not installed" in message
    assert "--packages" in message


def test_build_with_a_broken_setup_shows_the_end_of_its_output(package: Path) -> None:
    (package.parent / "setup.py").write_text("raise SystemExit('the setup is broken')\n")
    assert "    the setup is broken" in refusal(lambda: build(package))


def test_build_with_a_broken_pyproject_names_the_file(package: Path) -> None:
    (package.parent / "pyproject.toml").write_text("[project\n")
    assert "pyproject.toml: " in refusal(lambda: build(package))


def test_build_without_init_has_one_in_the_archive_and_the_requirements(package: Path) -> None:
    (package / "__init__.py").unlink()
    (package / "layers" / "__init__.py").unlink()
    (package / "layers" / "dense.py").touch()
    with packaging.build(package, ["numpy>=2", "tqdm"]) as archive:
        assert {"trainer/__init__.py", "trainer/layers/dense.py"} <= names(archive.path)
        with tarfile.open(archive.path) as tar:
            needs = tar.extractfile("trainer-0.0.0/trainer.egg-info/requires.txt")
            assert needs is not None
            assert needs.read().split() == [b"numpy>=2", b"tqdm"]
    assert not (package / "__init__.py").exists()


def test_build_with_a_file_that_cannot_be_read_names_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: os.PathLike[str], *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(source))

    monkeypatch.setattr(shutil, "copyfile", refused)
    message = refusal(lambda: build(package))
    assert message.startswith(f"{package} cannot be packaged: Permission denied: '{package}/")


def test_build_of_no_directory_is_refused(tmp_path: Path) -> None:
    assert "is not a valid directory" in refusal(lambda: build(tmp_path / "none"))


def test_build_follows_a_link_to_the_package(package: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(package)
    with packaging.build(tmp_path / "link") as archive:
        assert archive.path.name == "trainer-0.0.0.tar.gz"


def test_check_archive_of_another_kind_lists_what_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    assert ".tar.gz, .tgz, .zip, .whl" in refusal(lambda: packaging.check_archive(tmp_path / "a.txt"))


def test_check_archive_that_is_missing_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(lambda: packaging.check_archive(tmp_path / "a.tar.gz"))


@pytest.mark.parametrize("name", ["trainer-1.0.tar.gz", "trainer-1.0.whl"])
def test_check_archive_of_something_else_by_that_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "is no archive, whatever its name." in refusal(lambda: packaging.check_archive(tmp_path / name))
