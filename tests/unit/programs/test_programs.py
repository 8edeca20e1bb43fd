"""Programs by a path and a module name: their files, where they start, and which are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from trainyard_programs import program_wheel, programs
from trainyard_programs.programs import Program, Search
from trainyard_protocol.errors import InvalidArgument

GUARD = 'if __name__ == "__main__":\n    print("ran")\n'
PROJECT = "[project]\nname = 'app'\nversion = '1'\ndependencies = ['six']\n"
BUILT = PROJECT + "[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'\n"


def tree(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return directory


def notebook(*cells: str, language: str = "python") -> str:
    return json.dumps(
        {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {"kernelspec": {"name": "gone", "language": language}},
            "cells": [
                {"cell_type": "code", "source": cell, "metadata": {}, "outputs": [], "execution_count": None}
                for cell in cells
            ],
        }
    )


def found(directory: Path, path: str, module: str = "", here: str = "elsewhere") -> Program:
    return programs.find(directory / path, module, Search(current_dir=directory / here))


def test_find_resolves_every_kind_of_program(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "trainer/__init__.py": "",
            "trainer/task.py": "from . import model\nimport shared",
            "trainer/model.py": "",
            "shared/util.py": "import constants",
            "constants.py": "",
            "old/task.py": "",
            "7-days/task.py": "",
            "main/__main__.py": "import main.deep.one",
            "main/deep/one.py": "",
            "flat/train.py": "import model, json",
            "flat/model.py": "",
            "flat/env/__init__.py": "",
            "flat/build/notes.txt": "",
            "project/trainer/__init__.py": "",
            "project/trainer/run.py": "",
            "guarded/one.py": GUARD,
            "guarded/two.py": "",
            "alone.py": "import helpers\nfrom layers.dense import Dense",
            "helpers.py": "import numpy",
            "layers/dense.py": "",
            "layers/sizes.json": "{}",
            "My notebook.py": "# In[1]:\nget_ipython().run_line_magic('matplotlib', 'inline')",
            "book.ipynb": notebook(
                "!pip install -q 'six>=1' rich -r more.txt", "%pip install tqdm  # bars", "%matplotlib inline\n1 / 0"
            ),
            "test.py": "",
            "train.sh": "#!/bin/sh\necho $RANK",
            "launch": "#!/usr/bin/env bash\necho $RANK",
            "shell/run.sh": "true",
            "deep/scripts/train.py": "",
            "deep/configs/a.yaml": "",
            "newer/__init__.py": "",
            "newer/task.py": "def first[T](items: list[T]) -> T: ...\n",
        },
    )
    package = ("trainer/__init__.py", "trainer/model.py", "trainer/task.py")
    cases: dict[tuple[str, str], tuple[str, str, str, tuple[str, ...]]] = {
        ("trainer", "trainer.task"): ("module", "trainer.task", "", ("constants.py", "shared/util.py", *package)),
        ("trainer", ""): ("module", "trainer.task", "", ("constants.py", "shared/util.py", *package)),
        (".", "trainer.task"): ("module", "trainer.task", "", ()),
        ("old", "old.task"): ("module", "old.task", "", ("old/task.py",)),
        ("7-days", "7-days.task"): ("module", "7-days.task", "", ("7-days/task.py",)),
        ("main", "main"): ("module", "main", "", ("main/__main__.py", "main/deep/one.py")),
        ("project", "trainer.run"): ("module", "trainer.run", "", ("trainer/__init__.py", "trainer/run.py")),
        ("flat", "train"): ("python", "train", "", ("build/notes.txt", "env/__init__.py", "model.py", "train.py")),
        ("flat", ""): ("python", "train", "", ("build/notes.txt", "env/__init__.py", "model.py", "train.py")),
        ("flat", "train.py"): ("python", "train", "", ("build/notes.txt", "env/__init__.py", "model.py", "train.py")),
        ("guarded", ""): ("python", "one", "", ("one.py", "two.py")),
        ("alone.py", "alone"): ("python", "alone", "",
         ("alone.py", "helpers.py", "layers/dense.py", "layers/sizes.json")),
        ("My notebook.py", ""): ("ipython", "My_notebook", "", ("My notebook.py",)),
        ("book.ipynb", ""): ("notebook", "book", "", ("book.ipynb",)),
        ("test.py", ""): ("python", "test_program", "", ("test.py",)),
        ("train.sh", ""): ("shell", "train", "", ("train.sh",)),
        ("launch", ""): ("shell", "launch", "", ("launch",)),
        ("shell", ""): ("shell", "run", "", ("run.sh",)),
        ("deep", "scripts/train.py"): ("python", "train", "", ("configs/a.yaml", "scripts/train.py")),
        ("newer", "newer.task"): ("module", "newer.task", "", ("newer/__init__.py", "newer/task.py")),
    }  # fmt: skip
    got = {case: found(tmp_path, *case) for case in cases}
    wrong = {}
    for case, expected in cases.items():
        one = got[case]
        seen = (one.kind, one.module, one.directory, tuple(one.listing.files) if expected[3] else ())
        if seen != expected:
            wrong[case] = seen
    assert not wrong
    assert got["train.sh", ""].interpreter == "sh"
    assert got["launch", ""].interpreter == "bash"
    assert got["trainer", ""].choice == "task.py, by its name"
    assert got["shell", ""].choice == "run.sh, the only script"
    assert "the only one with" in got["guarded", ""].choice
    assert got["deep", "scripts/train.py"].command == ("python", "scripts/train.py")
    assert got["My notebook.py", ""].steps[0]["packages"] == ["ipython", "pip", "matplotlib"]
    assert got["book.ipynb", ""].steps == (
        {"what": "packages", "packages": ["nbclient", "ipykernel", "pip", "six>=1", "rich", "tqdm", "matplotlib"]},
    )
    assert [one.passes_job_dir for one in (got["trainer", ""], got["flat", ""])] == [True, False]
    (note,) = got["newer", "newer.task"].notes if sys.version_info < (3, 12) else ("It runs where",)
    assert "It runs where" in note


def test_program_starts_where_its_user_starts_it(tmp_path: Path) -> None:
    """Its root, its working directory in there, its entry, and the directories of modules."""
    tree(
        tmp_path,
        {
            "repo/pyproject.toml": PROJECT, "repo/main.py": "", "repo/scripts/train.py": "", "repo/data/x.csv": "",
            "src_layout/pyproject.toml": BUILT, "src_layout/src/app/__init__.py": "", "src_layout/src/app/train.py": "",
            "src_layout/scripts/train.py": "", "src_layout/conf/a.yaml": "", "plain/src/app/__init__.py": "",
            "plain/src/app/train.py": "", "below/examples/train.py": "", "below/examples/requirements.txt": "six",
            "home/project/t.py": "", "home/project/requirements.txt": "-e .", "home/private.txt": "",
        },
    )  # fmt: skip
    cases = {
        ("repo/scripts/train.py", "", "repo"): ("repo", "", "scripts/train.py", ()),
        ("repo/scripts/train.py", "", "repo/scripts"): ("repo/scripts", "", "train.py", ()),
        ("repo/scripts", "train", "repo"): ("repo", "scripts", "scripts/train.py", ()),
        ("repo", "main", "."): ("repo", "", "main.py", ()),
        ("src_layout/src/app", "app.train", "src_layout"): ("src_layout", "", "app.train", ("src",)),
        ("src_layout", "app.train", "src_layout"): ("src_layout", "", "app.train", ("src",)),
        ("src_layout/scripts/train.py", "", "src_layout"): ("src_layout", "", "scripts/train.py", ("src",)),
        ("plain", "app.train", "plain"): ("plain", "", "app.train", ("src",)),
        ("plain/src/app", "app.train", "plain"): ("plain/src", "", "app.train", ()),
        ("below/examples/train.py", "", "below"): ("below", "", "examples/train.py", ()),
        ("below", "examples/train.py", "below"): ("below", "", "examples/train.py", ()),
    }
    wrong = {}
    for (path, module, here), expected in cases.items():
        one = found(tmp_path, path, module, here)
        got = (one.root.relative_to(tmp_path.resolve()).as_posix(), one.directory, one.entry, one.python_path)
        if got != expected:
            wrong[path, module, here] = got
    assert not wrong
    whole = found(tmp_path, "src_layout/scripts/train.py", here="src_layout")
    assert "conf/a.yaml" in whole.listing.files  # its project is built, which takes all of it
    assert [step.get("optional", False) for step in whole.steps] == [False, True]
    of_home = found(tmp_path, "home/project/t.py", here="home")  # its local package is not all that is there
    assert (*of_home.listing.files,) == ("project/requirements.txt", "project/t.py")
    some = found(tmp_path, "repo/scripts/train.py", here="repo")
    assert (*some.listing.files,) == ("pyproject.toml", "scripts/train.py")
    assert some.steps == ({"what": "pyproject", "file": "pyproject.toml"},)
    assert found(tmp_path, "below/examples/train.py", here="below").steps == (
        {"what": "requirements", "file": "examples/requirements.txt"},
    )


def test_module_without_a_path_is_looked_for_beside_the_config(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "here/trainer/__init__.py": "", "here/trainer/task.py": "", "here/src/inner/__init__.py": "",
            "here/src/inner/task.py": "", "here/t.py": "", "here/scripts/u.py": "",
        },
    )  # fmt: skip
    search = Search(current_dir=tmp_path / "here")
    rows = {
        "trainer.task": "trainer.task", "inner.task": "inner.task", "t": "t.py", "t.py": "t.py",
        "scripts/u.py": "scripts/u.py", "installed.module": None,
    }  # fmt: skip
    got = {name: programs.beside((tmp_path / "here",), name, search) for name in rows}
    assert {name: one and one.entry for name, one in got.items()} == rows
    with pytest.raises(InvalidArgument, match=r"gone.py: there is no such file in .*here. Name it with --package-path"):
        programs.beside((tmp_path / "here",), "gone.py", search)


def test_find_reports_at_submit_what_could_not_run(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "trainer/__init__.py": "",
            "trainer/task.py": "from .. import secrets",
            "trainer/model.py": "",
            "deep/__init__.py": "",
            "deep/task.py": "from .layers import dense\nimport json, deep.gone",
            "deep/layers/__init__.py": "from deep import layers",
            "deep/layers/dense.py": "import os\ndef f(:\n",
            "two/a.py": "",
            "two/b.py": "",
            "empty/readme.txt": "",
            "syntax.py": "import os\nfor x in range(3)\n    print(x)\n",
            "python2.py": "import os\nprint 'step', 1\n",
            "magic.py": "x = 1\n%matplotlib inline\n",
            "relative.py": "import os\nfrom .model import Net\n",
            "imports.py": "import broken\n",
            "broken.py": "def f(:\n",
            "book.ipynb": "{}",
            "r.ipynb": notebook(language="R"),
            "damaged.ipynb": "{",
            "data.csv": "1,2",
            "packed.whl": "",
            "dos.sh": "echo 1\r\n",
            "quote.sh": "echo 'a\n",
            "needs/train.py": "",
            "needs/requirements.txt": "numpy\n-e ../lib\n",
        },
    )
    (tmp_path / "dos.sh").write_bytes(b"echo 1\r\n")
    cases = {
        ("trainer", "trainer.tsk"): 'trainer.tsk is not in the package * Did you mean "trainer.task"?',
        ("trainer", "task"): "task is not in the package * Its name is trainer.task.",
        ("trainer", "trainer.task"): "task.py:1: `from .. import secrets` is a relative import beyond the package",
        ("two", ""): "two has several files that could start the program: name one with --module-name (a, b).",
        ("deep", ""): "layers/dense.py:2: is not valid Python",
        ("two", "c"): "c is not in * It has a, b.",
        ("empty", ""): "there is nothing to run",
        ("none", ""): "none does not exist",
        ("syntax.py", ""): "syntax.py:2: is not valid Python * expected ':'.\n    for x in range(3)\n    ",
        ("python2.py", ""): "python2.py:2: * This looks like Python 2",
        ("magic.py", ""): "magic.py:2: * nbconvert --to script",
        ("relative.py", ""): "relative.py:2: `from .model import Net` is a relative import * Write `from model import",
        ("imports.py", ""): "broken.py:1: is not valid Python",
        ("book.ipynb", ""): "book.ipynb: is not a notebook of format 4",
        ("r.ipynb", ""): "r.ipynb: is a notebook of R; only those of Python",
        ("damaged.ipynb", ""): "damaged.ipynb: is not a notebook: ",
        ("data.csv", ""): "data.csv is no Python file (.py), shell script (.sh) or notebook (.ipynb)",
        ("two", "gone/a.py"): "gone/a.py does not exist",
        ("two", "../syntax.py"): "is outside ",
        ("packed.whl", ""): "--packages",
        ("relative.py", "other"): "relative.py is one file, whose module is relative; not other",
        ("dos.sh", ""): "dos.sh:1: has Windows line endings",
        ("quote.sh", ""): "quote.sh is not a valid bash script: ",
        ("needs", ""): "requirements.txt:2: ../lib is outside",
    }
    wrong = {}
    for (path, module), expected in cases.items():
        with pytest.raises(InvalidArgument) as caught:
            found(tmp_path, path, module)
        rest = caught.value.message
        for part in expected.split(" * "):
            if part not in rest:
                wrong[path, module] = caught.value.message
            rest = rest.partition(part)[2]
    assert not wrong


def test_left_out_names_files_that_a_program_opens_and_its_replicas_have_not(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "alone.py": """\
                import helpers
                open("configs/params.yaml")
                open("gone.yaml")
                """,
            "helpers.py": """\
                open("configs/../configs/more.yaml")
                open("helpers.py")
                """,
            "configs/params.yaml": "",
            "configs/more.yaml": "",
            "trainer/__init__.py": "",
            "trainer/task.py": 'open("trainer/sizes.json")',
            "trainer/sizes.json": "",
            "elsewhere/words.txt": "",
            "words.py": 'open("words.txt")',
        },
    )
    (tmp_path / "absolute.py").write_text(f"open({str(tmp_path / 'gone.yaml')!r})")

    def left_out(path: str, *directories: str) -> list[str]:
        program = found(tmp_path, path, here=".")
        return list(programs.named_and_left_out(program, tmp_path, *(tmp_path / name for name in directories)))

    whole = "which is not sent. --package-path DIR sends a directory whole."
    assert left_out("alone.py") == [
        f"{tmp_path}/alone.py:2 names configs/params.yaml, {whole}",
        f"{tmp_path}/helpers.py:1 names configs/../configs/more.yaml, {whole}",
    ]
    assert left_out("words.py", "elsewhere") == [f"{tmp_path}/words.py:1 names words.txt, {whole}"]
    assert left_out("absolute.py") == []
    assert left_out("trainer") == []
    (tmp_path / "main.py").write_text('open("configs/params.yaml")')
    assert list(programs.named_and_left_out(programs.find(tmp_path, "main"), tmp_path)) == []


def test_nothing_beside_a_program_keeps_it_from_being_submitted(tmp_path: Path) -> None:
    """Its own strings may be no paths, and files that it does not import may be of any language."""
    long = "训练" * 60
    odd = f'"""{long}。{long[:9]}/b.c"""\nprint("{long}.")\nopen("a.yaml")\n'
    beside = {"old.py": 'print "of Python 2"', "binary.py": "\0", "a.yaml": ""}
    tree(tmp_path, {f"scripts/{name}": text for name, text in beside.items()})
    tree(tmp_path, {f"trainer/{name}": text for name, text in {**beside, "__init__.py": ""}.items()})
    for name in ("scripts/train.py", "trainer/task.py", "alone.py"):
        (tmp_path / name).write_text(odd, encoding="utf-8")
    (tmp_path / "a.yaml").touch()
    cases = {"scripts": "train", "trainer": "trainer.task", "alone.py": ""}
    messages = {
        path: len(list(programs.named_and_left_out(found(tmp_path, path, module, "."), tmp_path)))
        for path, module in cases.items()
    }
    assert messages == {"scripts": 0, "trainer": 1, "alone.py": 1}


def test_no_code_of_a_tree_is_run_where_it_is_checked_and_packed(tmp_path: Path) -> None:
    """Each of its files would leave a mark: those of its project, and those that have names of modules of ours."""
    mark = tmp_path / "was-run"
    runs = f"open({str(mark)!r}, 'a').write(__file__ + '\\n')\n"
    names = ("setup", "conftest", "backend", "sitecustomize", "json", "yaml", "click", "logging", "httpx", "pydantic")
    ours = ("trainyard_cli", "trainyard_protocol", "trainyard_server", "trainer/__init__", "trainer/task", "__init__")
    backend = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    hostile = tree(
        tmp_path / "hostile",
        {**{f"{name}.py": runs for name in (*names, *ours)},
         "pyproject.toml": f"{backend}[project]\nname = 'x'\nversion = '1'\ndynamic = ['dependencies']\n",
         "run.sh": f"#!/bin/bash\ntouch {mark}\n", "cells.ipynb": notebook(runs)},
    )  # fmt: skip
    command = Path(sys.executable).with_name("trainyard")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TRAINYARD_STATE_DIR": str(tmp_path / "state")}
    words = [str(command), "jobs", "validate", "--package-path", "trainer"]
    done = subprocess.run(words, cwd=hostile, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "The job is valid" in done.stdout) == (0, True), done.stderr
    for path in ("trainer", "setup.py", "run.sh", "cells.ipynb"):
        with program_wheel.build(programs.find(hostile / path)):
            assert not mark.exists(), mark.read_text()
