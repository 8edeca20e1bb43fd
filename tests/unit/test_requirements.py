"""requirements/: what is installed has the versions of constraints.txt, is what pyproject.toml needs, and has hashes.

`make lock` writes it; scripts/audit.py reads it, here with a pip-audit of its own.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
ENTRY = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?: ; [^\\\n]+)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FAKE = """#!{python}
import json, pathlib, sys
file = pathlib.Path({file!r})
given = json.loads(file.read_text())
file.with_suffix(".arguments").write_text(" ".join(sys.argv))
print(given["out"])
print(given["err"], file=sys.stderr)
sys.exit(given["code"])
"""


def locked(name: str) -> dict[str, str]:
    """The versions of a file."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return {canonicalize_name(found["name"]): found["version"] for found in ENTRY.finditer(text)}


def needed(*extras: str) -> set[str]:
    """The packages that the project needs with these extras, by name."""
    names: set[str] = set()
    left = [*PROJECT["dependencies"], *(f"trainyard[{extra}]" for extra in extras)]
    while left:
        requirement = Requirement(left.pop())
        if requirement.name == "trainyard":
            left += [one for extra in requirement.extras for one in PROJECT["optional-dependencies"][extra]]
        else:
            names.add(canonicalize_name(requirement.name))
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_line_of_a_file_is_a_version_with_hashes(path: Path) -> None:
    head = "# Made by `make lock` from pyproject.toml and constraints.txt.\n"
    rest = ENTRY.sub("", path.read_text())
    assert rest == head + ("--requirement demo.txt\n" if path.name == "dev.txt" else "")


def test_locked_versions_are_those_of_constraints_and_have_all_that_is_needed() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    everything = locked("demo") | locked("dev")
    assert everything == pins, "after a change of constraints.txt or pyproject.toml: make lock"
    for name, extras in {
        "demo": ["local", "trainer"],
        "server": ["server", "postgresql", "tensorboard"],
        "agent": ["agent"],
    }.items():
        assert needed(*extras) | {"hatchling"} <= locked(name).keys()
        assert locked(name).items() <= pins.items()
    assert needed("dev") <= everything.keys()
    assert locked("pip").items() <= pins.items()


def test_base_environment_of_package_jobs_has_what_the_template_and_the_library_need() -> None:
    lines = (ROOT / "trainer_template" / "requirements.txt").read_text().splitlines()
    template = [line.partition("#")[0].strip() for line in lines]
    project = tomllib.loads((ROOT / "trainer_library" / "pyproject.toml").read_text())["project"]
    library = [
        *project["dependencies"],
        *(line for lines in project["optional-dependencies"].values() for line in lines),
    ]
    for needs in (template, library):
        assert {canonicalize_name(Requirement(line).name) for line in needs} <= needed("trainer")


PACKAGES = [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}]
FOUND = {"name": "c", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
AWAY = "requests.exceptions.ProxyError: HTTPSConnectionPool(host='registry.example', port=443)"


@pytest.mark.parametrize(
    ("packages", "error", "code", "expected", "words"),
    [
        (PACKAGES, "", 0, 0, "Not audited, unknown to the service: b\nNo known vulnerability in 1 packages."),
        ([*PACKAGES, FOUND], "Found 1", 1, 1, "c 2: PYSEC-1, fixed in 3"),
        (PACKAGES[1:], "", 0, 0, "Not audited: what answers as PyPI here knows none"),
        (None, AWAY, 1, 0, "Not audited: the service of vulnerabilities (PyPI's) cannot be reached"),
        (None, "ERROR:pip_audit._cli:Could not connect to PyPI's vulnerability feed", 1, 0, "Not audited"),
        (None, "requirements.txt is not hashed", 1, 1, "exit code 1:\nrequirements.txt is not hashed"),
    ],
    ids=["clean", "vulnerable", "mirror", "unreachable", "timeout", "broken"],
)
def test_audit_fails_for_a_vulnerability_and_not_for_an_unreachable_service(
    tmp_path: Path, packages: object, error: str, code: int, expected: int, words: str
) -> None:
    out = json.dumps({"dependencies": packages, "fixes": []}) if packages is not None else ""
    given = tmp_path / "given"
    given.write_text(json.dumps({"out": out, "err": error, "code": code}))
    (tmp_path / "pip-audit").write_text(FAKE.format(python=sys.executable, file=str(given)))
    (tmp_path / "pip-audit").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    audit = [sys.executable, str(ROOT / "scripts/audit.py"), "--ignore-vuln", "PYSEC-2"]
    answer = subprocess.run(audit, env=environment, capture_output=True, text=True, check=False)
    assert (answer.returncode, words in answer.stdout + answer.stderr) == (expected, True), answer
    arguments = given.with_suffix(".arguments").read_text()
    assert all(f"--requirement={path} " in arguments for path in FILES)
    assert arguments.endswith("--ignore-vuln PYSEC-2")
