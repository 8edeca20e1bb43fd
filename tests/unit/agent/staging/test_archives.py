import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from trainyard_agent.staging.archives import is_package_name, needs_isolation

HATCHLING = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
SETUPTOOLS = (
    '[build-system]\nrequires = ["setuptools>=61", "wheel"]\nbuild-backend = "setuptools.build_meta"\n'
)
SCM = '[build-system]\nrequires = ["setuptools", "setuptools-scm"]\nbuild-backend = "setuptools.build_meta"\n'


def sdist(path: Path, files: dict[str, str]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return path
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("name", ["p-1.tar.gz", "p-1.zip"])
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"p-1/setup.py": ""}, False),
        ({"p-1/pyproject.toml": SETUPTOOLS}, False),
        ({"p-1/pyproject.toml": "[project]\nname = 'p'\n"}, False),
        ({"p-1/pyproject.toml": HATCHLING}, True),
        ({"p-1/pyproject.toml": SCM}, True),
        ({"p-1/deep/pyproject.toml": HATCHLING}, False),
        ({"p-1/pyproject.toml": "not toml"}, False),
        ({"p-1/pyproject.toml": "build-system = 3"}, False),
        ({}, False),
    ],
)
def test_isolation_is_needed_where_more_than_setuptools_builds(
    tmp_path: Path, name: str, files: dict[str, str], expected: bool
) -> None:
    assert needs_isolation(sdist(tmp_path / name, files)) is expected


@pytest.mark.parametrize("name", ["p.tar.gz", "p.zip", "p.whl"])
def test_isolation_of_what_is_no_archive_is_left_to_pip(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"garbage")
    assert needs_isolation(tmp_path / name) is False


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trainer-0.0.0.tar.gz", True),
        ("a.tgz", True),
        ("a-1-py3-none-any.whl", True),
        ("a.zip", True),
        ("", False),
        ("..tar.gz", False),
        ("-r.whl", False),
        ("a/b.whl", False),
        ("a.py", False),
        ("a b.whl", False),
    ],
)
def test_package_names_are_plain_files_that_pip_installs(name: str, expected: bool) -> None:
    assert is_package_name(name) is expected
