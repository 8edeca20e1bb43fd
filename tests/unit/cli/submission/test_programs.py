import subprocess
import sys
import zipfile
from pathlib import Path
from textwrap import dedent

import pytest

from trainyard_cli.submission import programs, script_package, wheels
from trainyard_cli.submission.programs import Program
from trainyard_protocol.errors import InvalidArgument

GUARD = 'if __name__ == "__main__":\n    print("ran")\n'


def tree(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return directory


def found(directory: Path, path: str, module: str = "") -> Program:
    return programs.find(directory / path, module)


def test_find_resolves_every_kind_of_program(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "trainer/__init__.py": "",
            "trainer/task.py": "from . import model",
            "trainer/model.py": "",
            "old/task.py": "",
            "flat/train.py": "import model, json",
            "flat/model.py": "",
            "flat/notes.txt": "",
            "flat/.git/config": "",
            "project/trainer/__init__.py": "",
            "project/trainer/run.py": "",
            "guarded/one.py": GUARD,
            "guarded/two.py": "",
            "alone.py": "import helpers\nfrom layers.dense import Dense",
            "helpers.py": "import numpy",
            "layers/dense.py": "",
            "layers/sizes.json": "{}",
            "unrelated.py": "",
            "My notebook.py": "# In[1]:\nget_ipython().run_line_magic('matplotlib', 'inline')",
            "test.py": "",
            "train.sh": "#!/bin/sh\necho $RANK",
            "launch": "#!/usr/bin/env bash\necho $RANK",
            "shell/run.sh": "true",
        },
    )
    cases = {
        ("trainer", "trainer.task"): ("package", "trainer.task", ()),
        ("trainer", ""): ("package", "trainer.task", ()),
        ("old", "old.task"): ("package", "old.task", ()),
        ("project", "trainer.run"): ("package", "trainer.run", ()),
        ("flat", "train"): ("python", "train", ("model.py", "notes.txt", "train.py")),
        ("flat", ""): ("python", "train", ("model.py", "notes.txt", "train.py")),
        ("flat", "train.py"): ("python", "train", ("model.py", "notes.txt", "train.py")),
        ("guarded", ""): ("python", "one", ("one.py", "two.py")),
        ("alone.py", "alone"): ("python", "alone", ("alone.py", "helpers.py", "layers/dense.py", "layers/sizes.json")),
        ("My notebook.py", ""): ("notebook", "My_notebook", ("My notebook.py",)),
        ("test.py", ""): ("python", "test_program", ("test.py",)),
        ("train.sh", ""): ("shell", "train", ("train.sh",)),
        ("launch", ""): ("shell", "launch", ("launch",)),
        ("shell", ""): ("shell", "run", ("run.sh",)),
    }
    got = {case: found(tmp_path, *case) for case in cases}
    assert {case: (one.kind, one.module, one.files) for case, one in got.items()} == cases
    assert got["train.sh", ""].interpreter == "sh"
    assert got["launch", ""].interpreter == "bash"
    assert got["trainer", ""].choice == "task.py, by its name"
    assert got["shell", ""].choice == "run.sh, the only script"
    assert "the only one with" in got["guarded", ""].choice
    assert got["alone.py", "alone"].shown.endswith(
        "and what it imports (helpers.py, layers/dense.py, layers/sizes.json)"
    )


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
            "widget.py": "\nget_ipython().run_line_magic('sql', 'select 1')",
            "data.csv": "1,2",
            "packed.whl": "",
            "dos.sh": "echo 1\r\n",
            "quote.sh": "echo 'a\n",
            "needs/train.py": "",
            "needs/requirements.txt": "numpy\n-e .\n",
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
        ("book.ipynb", ""): "jupyter nbconvert --to script",
        ("widget.py", ""): "widget.py:2: `sql` is a command of notebooks",
        ("data.csv", ""): "data.csv is neither a Python file (.py) nor a shell script (.sh)",
        ("packed.whl", ""): "--packages",
        ("relative.py", "other"): "relative.py is one file, whose module is relative; not other",
        ("dos.sh", ""): "dos.sh:1: has Windows line endings",
        ("quote.sh", ""): "quote.sh is not a valid bash script: ",
        ("needs", ""): "requirements.txt:2: `-e .` is an editable install",
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


def test_requirements_become_those_of_the_package(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "train.py": "",
            "requirements.txt": """\
                # versions of November
                numpy>=2.0,<3   # arrays
                -r more.txt
                tqdm[notebook] ; python_version >= "3.8"
                torch \\
                  ==2.13.0
                tool @ https://example.com/tool.zip
                """,
            "more.txt": "scikit-learn\nnumpy>=2.0,<3\n",
            "book.py": "get_ipython().system('pip install -q pandas==2.2 \"rich>=13\"')",
            "trainer/__init__.py": "",
            "trainer/task.py": "",
        },
    )
    listed = (
        "numpy>=2.0,<3",
        "scikit-learn",
        'tqdm[notebook] ; python_version >= "3.8"',
        "torch ==2.13.0",
        "tool @ https://example.com/tool.zip",
    )
    assert found(tmp_path, "train.py").requirements == listed
    assert found(tmp_path, "trainer").requirements == listed
    assert found(tmp_path, "book.py").requirements == (*listed, "pandas==2.2", "rich>=13")
    assert "Requires-Dist: torch ==2.13.0\n" in wheels.metadata("train", found(tmp_path, "train.py").requirements)
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup()\n")
    assert found(tmp_path, "trainer").requirements == ()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--index-url https://x", "is an option of pip"),
        ("-c pins.txt", "is a file of constraints"),
        ("numpy==2 --hash=sha256:00", "has an option of pip"),
        ("git+https://x/y", "is an address without a name"),
        ("./local", "is an address without a name"),
        ("numpy = 2", "is not a requirement"),
        ("-r requirements.txt", "includes itself"),
        ("-r none.txt", "cannot be read"),
    ],
)
def test_requirement_that_no_package_can_have_is_refused_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    tree(tmp_path, {"train.py": "", "requirements.txt": f"numpy\n{line}\n"})
    with pytest.raises(InvalidArgument) as caught:
        found(tmp_path, "train.py")
    assert problem in caught.value.message


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
        program = programs.find(tmp_path / path)
        return list(programs.left_out(program, tmp_path, *(tmp_path / name for name in directories)))

    whole = "which is not uploaded. A directory is uploaded whole: --package-path DIR"
    assert left_out("alone.py") == [
        f"{tmp_path}/alone.py:2 names configs/params.yaml, {whole}",
        f"{tmp_path}/helpers.py:1 names configs/../configs/more.yaml, {whole}",
    ]
    assert left_out("words.py", "elsewhere") == [f"{tmp_path}/words.py:1 names words.txt, {whole}"]
    assert left_out("absolute.py") == []
    (sentence,) = left_out("trainer")
    assert "task.py:1 names trainer/sizes.json, which is not in the directory that a package starts in" in sentence
    (tmp_path / "main.py").write_text('open("configs/params.yaml")')
    assert list(programs.left_out(programs.find(tmp_path, "main"), tmp_path)) == []


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
        path: len(list(programs.left_out(programs.find(tmp_path / path, module), tmp_path)))
        for path, module in cases.items()
    }
    assert messages == {"scripts": 0, "trainer": 1, "alone.py": 1}


def test_wheel_of_a_script_runs_it_as_python_does(tmp_path: Path) -> None:
    """Arguments, siblings, data beside it, pickled functions of __main__, exit code, a notebook's calls."""
    tree(
        tmp_path,
        {
            "train.py": """\
                import multiprocessing, pathlib, sys
                import helpers
                def check():
                    print("spawned", flush=True)
                if __name__ == "__main__":
                    child = multiprocessing.get_context("spawn").Process(target=check)
                    child.start()
                    child.join()
                    print(helpers.NAME, sys.argv[1:], pathlib.Path(__file__).with_name("words.txt").read_text())
                    sys.exit(7)
                """,
            "notebook.py": """\
                get_ipython().run_line_magic('matplotlib', 'inline')
                get_ipython().run_cell_magic('time', '', 'timed = 5')
                get_ipython().system('echo from a shell')
                print(timed)
                """,
            "helpers.py": "NAME = 'helper'",
            "words.txt": "one",
            "run.sh": '#!/bin/bash\npython -c "import sys; print(sys.prefix)"\necho "$0" "$@"\nexit 3\n',
        },
    )
    ran = _run(tmp_path, found(tmp_path, ".", "train"), "--epochs", "5")
    assert ran.returncode == 7, ran.stderr
    assert ran.stdout.splitlines() == ["spawned", "helper ['--epochs', '5'] one"]
    assert _run(tmp_path, found(tmp_path, "notebook.py")).stdout.splitlines() == ["from a shell", "5"]
    ran = _run(tmp_path, found(tmp_path, "run.sh"), "a b")
    prefix, arguments = ran.stdout.splitlines()
    assert prefix == sys.prefix
    assert arguments.endswith("program/run.sh a b")
    assert ran.returncode == 3


def _run(tmp_path: Path, program: Program, *arguments: str) -> subprocess.CompletedProcess[str]:
    site = tmp_path / "site" / program.module
    with script_package.build(program) as first, script_package.build(program) as second:
        assert first.sha256 == second.sha256
        with zipfile.ZipFile(first.path) as wheel:
            wheel.extractall(site)
    return subprocess.run(
        [sys.executable, "-m", program.module, *arguments],
        cwd=site,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
