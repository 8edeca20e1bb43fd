"""Declarations of a directory, and the steps that install them."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from trainyard_programs import projects
from trainyard_programs.projects import Project
from trainyard_protocol.errors import InvalidArgument

PROJECT = "[project]\nname = 'app'\nversion = '1'\n"
BUILT = "[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'\n"
SIX = "dependencies = ['six']\n"
LOCK = """\
version = 1
[[package]]
name = "app"
source = { virtual = "." }
"""
REQUIREMENTS: dict[str, Any] = {"what": "requirements", "file": "requirements.txt"}
PYPROJECT: dict[str, Any] = {"what": "pyproject", "file": "pyproject.toml"}
UV_LOCK: dict[str, Any] = {"what": "lock", "file": "uv.lock"}


def built(*, dependencies: bool, directory: str = ".") -> dict[str, Any]:
    return {"what": "project", "directory": directory, "dependencies": dependencies}


def tree(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return directory


def test_project_of_each_kind_has_the_steps_that_its_own_tool_would_take(tmp_path: Path) -> None:
    local = "[tool.uv.sources]\nlib = { path = 'lib' }\n"
    cases: dict[str, tuple[dict[str, str], list[dict[str, Any]], list[str], bool]] = {
        "requirements": ({"requirements.txt": "six\n"}, [REQUIREMENTS], ["requirements.txt"], False),
        "an application": ({"pyproject.toml": PROJECT + SIX}, [PYPROJECT], ["pyproject.toml"], False),
        "both": ({"pyproject.toml": PROJECT + SIX, "requirements.txt": "six"}, [REQUIREMENTS, PYPROJECT],
         ["requirements.txt", "pyproject.toml"], False),
        "a package": ({"pyproject.toml": PROJECT + SIX + BUILT}, [PYPROJECT, built(dependencies=False)],
         ["pyproject.toml"], True),
        "dynamic dependencies": ({"pyproject.toml": PROJECT + "dynamic = ['dependencies']\n" + BUILT},
         [built(dependencies=True)], ["pyproject.toml"], True),
        "poetry's package": (
            {"pyproject.toml": "[tool.poetry]\nname = 'app'\n[tool.poetry.dependencies]\nsix = '^1'\n" + BUILT},
            [built(dependencies=True)],
            ["pyproject.toml"],
            True,
        ),
        "poetry's application": (
            {"pyproject.toml": "[tool.poetry]\npackage-mode = false\n[tool.poetry.dependencies]\nsix = '^1'\n" + BUILT},
            [{"what": "poetry", "file": "pyproject.toml"}],
            ["pyproject.toml"],
            False,
        ),
        "setup.py": ({"setup.py": "", "setup.cfg": ""}, [built(dependencies=True)], ["setup.py", "setup.cfg"], True),
        "setup.cfg": ({"setup.cfg": "[metadata]\nname = app\n"}, [built(dependencies=True)], ["setup.cfg"], True),
        "uv's lock": ({"pyproject.toml": PROJECT + SIX, "uv.lock": LOCK, "requirements.txt": "six"}, [UV_LOCK],
         ["uv.lock", "pyproject.toml"], False),
        "uv's lock of another project": ({"pyproject.toml": PROJECT + SIX, "uv.lock": "version = 1\n"}, [PYPROJECT],
         ["pyproject.toml"], False),
        "pylock": ({"pylock.toml": ""}, [{"what": "lock", "file": "pylock.toml"}], ["pylock.toml"], False),
        "package = true": ({"pyproject.toml": PROJECT + SIX + "[tool.uv]\npackage = true\n"},
         [PYPROJECT, built(dependencies=False)], ["pyproject.toml"], True),
        "package = false": ({"pyproject.toml": PROJECT + SIX + BUILT + "[tool.uv]\npackage = false\n"}, [PYPROJECT],
         ["pyproject.toml"], False),
        "a source beside it": ({"pyproject.toml": PROJECT + SIX + local}, [PYPROJECT], ["pyproject.toml"], True),
        "conda": ({"environment.yml": "dependencies: []"}, [{"what": "conda", "file": "environment.yml"}],
         ["environment.yml"], False),
        "conda beside requirements": ({"environment.yml": "", "requirements.txt": "six"}, [REQUIREMENTS],
         ["requirements.txt"], False),
        "a local package": ({"requirements.txt": "-e .\n"}, [REQUIREMENTS], ["requirements.txt"], True),
    }  # fmt: skip
    wrong = {}
    for number, (name, (files, steps, read, is_whole)) in enumerate(cases.items()):
        found = projects.of(tree(tmp_path / str(number), {**files, "lib/__init__.py": ""}))
        got = None if found is None else ([*found.steps], [*found.files], found.is_whole)
        if got != (steps, read, is_whole):
            wrong[name] = got
    assert not wrong
    nothing = {"setup.cfg": "[flake8]\nmax-line-length = 100\n", "pyproject.toml": "[tool.ruff]\n"}
    assert projects.of(tree(tmp_path / "tools", nothing)) is None


def test_member_of_a_workspace_has_the_workspaces_lock(tmp_path: Path) -> None:
    member = {"packages/app/pyproject.toml": PROJECT + SIX + BUILT}
    root = tree(
        tmp_path, {"pyproject.toml": "[tool.uv.workspace]\nmembers = ['packages/*']\n", "uv.lock": LOCK, **member}
    )
    found = projects.find([root / "packages" / "app", root / "packages", root])
    assert found == Project(
        root,
        ({**UV_LOCK, "package": "app"}, built(dependencies=False, directory="packages/app")),
        ("uv.lock", "pyproject.toml"),
        is_built=True,
        is_local=True,
        listed=("uv.lock (of app)",),
    )


def test_script_declares_its_dependencies_inline(tmp_path: Path) -> None:
    block = "# /// script\n# requires-python = '>=3.11'\n# dependencies = ['six']\n# ///\n"
    script = tmp_path / "t.py"
    for text in (f"#!/usr/bin/env python\n{block}import six\n", block.replace("\n", "\r\n")):
        script.write_bytes(text.encode())
        found = projects.of_script(script)
        assert found is not None
        assert (found.steps, found.files) == (({"what": "script", "file": "t.py"},), ("t.py",))
    for text, says in {
        f"{block}import six\n{block}": "several blocks",
        "# /// script\n# six\n# ///\n": "is not TOML",
    }.items():
        script.write_text(text)
        with pytest.raises(InvalidArgument, match=says):
            projects.of_script(script)
    script.write_text("import six\n")
    assert projects.of_script(script) is None


def test_requirements_are_read_with_all_that_they_include(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "requirements.txt": """\
                --extra-index-url https://example.com/simple   # of the site
                -r requirements/base.txt
                --constraint=pins.txt
                numpy==2.1 --hash=sha256:00 \\
                  --hash=sha256:01
                tool @ https://example.com/tool.zip ; python_version > "3"
                git+https://git@example.com/a.git@v1#egg=a
                torch; sys_platform == "linux"
                """,
            "requirements/base.txt": "-r more.txt\n",
            "requirements/more.txt": "-r base.txt\nsix\n",
            "pins.txt": "six<2",
        },
    )
    found = projects.of(root)
    assert found is not None
    assert found.files == ("requirements.txt", "requirements/base.txt", "pins.txt", "requirements/more.txt")
    assert not found.is_local
    local = ("-e .", "./lib", "./lib[extra]", "lib @ file:lib", "-f lib", "--find-links=./lib", f"-e {root}/lib", "lib")
    (root / "lib").mkdir()
    wrong = []
    for line in local:
        (root / "requirements.txt").write_text(f"six\n{line}\n")
        found = projects.of(root)
        if found is None or found.is_local is not (line != "lib"):  # a name is a name, whatever lies beside it
            wrong.append(line)
    assert not wrong
    (root / "requirements.txt").write_bytes("-r pins.txt\r\n".encode("utf-16"))
    found = projects.of(root)
    assert found is not None
    assert found.files == ("requirements.txt", "pins.txt")


def test_declaration_that_cannot_be_installed_is_refused_with_its_line(tmp_path: Path) -> None:
    cases = {
        "requirements.txt": {
            "six\n-r none.txt": "requirements.txt:2: none.txt does not exist.",
            "-e ../lib": "requirements.txt:1: ../lib is outside",
            "-c /etc/pins.txt": "requirements.txt:1: /etc/pins.txt is outside",
            "tool @ file:///opt/tool": "requirements.txt:1: /opt/tool is outside",
            "\n-f ../wheels": "requirements.txt:2: ../wheels is outside",
            "-i https://user:word@example.com/simple": "requirements.txt:1: has credentials",
            "-i https://token@example.com/simple": "requirements.txt:1: has credentials",
            "\xff": "requirements.txt:1: is not text in UTF-8",
        },
        "pyproject.toml": {
            "[project\n": "pyproject.toml: is not TOML",
            f"{PROJECT}{SIX}[tool.uv.sources]\nsix = {{ path = '../six' }}": "pyproject.toml: six: ../six is outside",
            "[tool.poetry.dependencies]\nsix = { path = '../six' }\n": "pyproject.toml: six: ../six is outside",
        },
        "setup.cfg": {"name = x\n": "setup.cfg: cannot be read"},
    }
    wrong = {}
    for name, rows in cases.items():
        for text, says in rows.items():
            (tmp_path / name).write_bytes(text.encode("latin-1"))
            try:
                projects.of(tmp_path)
                wrong[text] = "accepted"
            except InvalidArgument as error:
                if says not in error.message:
                    wrong[text] = error.message
            (tmp_path / name).unlink()
    assert not wrong
    (tmp_path / "requirements.txt").write_text("-i https://${USER}:${TOKEN}@example.com/simple\nsix\n")
    assert projects.of(tmp_path) is not None
