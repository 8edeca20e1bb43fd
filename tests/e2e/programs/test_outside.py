"""Programs from outside, small versions of public ones: each runs as it does in its own checkout.

All of a table run at once on one service; a test reports every row that went wrong.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent

import pytest

from e2e.harness import Service, local

pytestmark = pytest.mark.e2e

ROMAN = "import roman\nprint('sixty', roman.toRoman(60))\n"
SIXTY = "sixty LX"
BLOCK = "# /// script\n# requires-python = '>=3.9'\n# dependencies = ['roman==4.2']\n# ///\n"
PROJECT = "[project]\nname = 'outside'\nversion = '7.1'\ndependencies = ['roman==4.2']\n"
HATCH = "[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'\n"
POETRY = "[build-system]\nrequires = ['poetry-core']\nbuild-backend = 'poetry.core.masonry.api'\n"
SETUP = (
    "from setuptools import find_packages, setup\nsetup(name='outside', version='2', packages=find_packages(), {})\n"
)

CELLS = (
    "%pip install -q roman==4.2\nimport roman, sys", "print('sixty', roman.toRoman(60), sys.argv[1:])", "1 + 1",
)  # fmt: skip
NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "of-another-machine", "language": "python", "display_name": "x"}},
    "cells": [
        {"cell_type": "code", "id": str(n), "metadata": {}, "outputs": [], "execution_count": None, "source": source}
        for n, source in enumerate(CELLS)
    ],
}


@dataclass(frozen=True, slots=True)
class Outside:
    """A program: its files, the words of its submission, and lines that its log has and has not. `prepare` are commands
    before it is submitted; `state` is that of its end, with words of its verdict."""

    files: Mapping[str, str]
    words: Sequence[str]
    prints: Sequence[str] = ()
    prints_not: Sequence[str] = ()
    prepare: Sequence[str] = ()
    state: str = "SUCCEEDED"
    verdict: Sequence[str] = ()
    notes: Sequence[str] = field(default=())


FILES = {
    # examples/ of Hugging Face, scripts/ of lightning-hydra-template: run from the root.
    "scripts_below": Outside(
        {
            "scripts/train.py": """\
                import sys, os
                sys.path.insert(0, os.getcwd())
                from lib.model import SIZE
                print('size', SIZE, open('configs/size.txt').read(), sys.argv[0])
                """,
            "lib/__init__.py": "",
            "lib/model.py": "SIZE = 3",
            "configs/size.txt": "of three",
        },
        ("--package-path", ".", "--module-name", "scripts/train.py"),
        ["size 3 of three scripts/train.py"],
    ),
    "linked_directory": Outside(
        {
            "here/t.py": "import os\nprint('n', open('configs/n.txt').read(), os.path.islink('same'))",
            "elsewhere/n.txt": "two",
        },
        ("--package-path", "here", "--module-name", "t"),
        ["n two True"],
        prepare=("ln -s ../elsewhere here/configs", "ln -s . here/loop", "ln -s t.py here/same"),
    ),
    "gitignore": Outside(
        {
            ".gitignore": "data/\n*.json\n!keep.json\n.env\n",
            "sub/.gitignore": "*.tmp\n",
            "sub/a.tmp": "",
            "sub/b.txt": "",
            "keep.json": "{}",
            "lose.json": "{}",
            ".env": "TOKEN=1",
            "t.py": "import os\nprint('has', sorted(n for d, _, ns in os.walk('.') for n in ns))",
        },
        ("--package-path", ".", "--module-name", "t"),
        ["has ['.gitignore', '.gitignore', 'b.txt', 'keep.json', 't.py']"],
        prepare=("git init -q .", "mkdir data", "truncate -s 600M data/big.bin"),
        notes=["Left out: data, lose.json, "],
    ),
    "secrets": Outside(
        {
            ".env": "TOKEN=12345678901234567890\n",
            "key.json": json.dumps(
                {"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIB\n"}
            ),
            "public.pem": "-----BEGIN CERTIFICATE-----\nMIIEvQIB\n-----END CERTIFICATE-----\n",
            "t.py": "import os\nprint('has', sorted(os.listdir()))",
        },
        ("--package-path", ".", "--module-name", "t"),
        ["has ['public.pem', 't.py']"],
        notes=["key.json (looks like a secret: key of a service account)"],
    ),
}

MAINS = {
    "atexit_pickle": Outside(
        {
            "t.py": """\
                import atexit, multiprocessing, os, pathlib, pickle, socket, tempfile, threading
                class Model: pass
                def save(): pathlib.Path("m").write_bytes(pickle.dumps(Model())); print("saved", flush=True)
                def last(): threading.main_thread().join(); print("thread", pickle.dumps(Model())[:1], flush=True)
                if __name__ == "__main__":
                    atexit.register(save)
                    threading.Thread(target=last).start()
                    with multiprocessing.get_context("spawn").Manager() as manager, tempfile.TemporaryDirectory() as t:
                        print("managed", manager.list([1]))
                        socket.socket(socket.AF_UNIX).bind(os.path.join(t, "x" * 40))
                """
        },
        ("--package-path", "t.py"),
        ["managed [1]", "thread b'\\x80'", "saved"],
    ),
    "traceback": Outside(
        {"t.py": "def f():\n    raise ValueError('broken')\nf()\n"},
        ("--package-path", "t.py"),
        ["Traceback (most recent call last):", "ValueError: broken"],
        ["trainyard_program", "runpy"],
        state="FAILED",
        verdict=["ValueError: broken"],
    ),
    "siblings": Outside(
        {
            "pkg/__init__.py": "",
            "pkg/train.py": "import common.util\nprint('common', common.util.V)",
            "common/util.py": "V = 5",
        },
        ("--package-path", "pkg", "--module-name", "pkg.train"),
        ["common 5"],
    ),
    "term_under_a_shell": Outside(
        {
            "run.sh": "python save.py\n",
            "save.py": """\
                import signal, sys, time
                def stop(*_):
                    time.sleep(2)
                    open("saved.txt", "w").write("1")
                    print("saved", flush=True)
                    sys.exit()
                signal.signal(signal.SIGTERM, stop)
                print("ready", flush=True)
                while True: time.sleep(0.1)
                """,
        },
        ("--package-path", ".", "--module-name", "run.sh"),
        ["saved", "1 file of the working directory, new or changed"],
        state="CANCELLED",
    ),
    "not_sent": Outside(
        {".gitignore": "data/\n", "data/__init__.py": "", "t.py": "import data\n"},
        ("--package-path", ".", "--module-name", "t"),
        prepare=("git init -q .",),
        state="FAILED",
        verdict=["No module named 'data'", "data lies at data, which was not sent: ignored by git"],
    ),
    "gcs_fuse": Outside(
        {"t.py": "open('/gcs/bucket/model', 'w')\n"}, ("--package-path", "t.py"), state="FAILED", verdict=["/gcs is"]
    ),
}

DECLARED = {
    "src_layout": Outside(
        {
            "pyproject.toml": PROJECT + HATCH + "[tool.hatch.build.targets.wheel]\npackages = ['src/mytrainer']\n",
            "src/mytrainer/__init__.py": "",
            "src/mytrainer/train.py": ROMAN
            + "import importlib.metadata\nprint('version', importlib.metadata.version('outside'))\n",
        },
        ("--package-path", "src/mytrainer", "--module-name", "mytrainer.train"),
        [SIXTY, "version 7.1"],
    ),
    "inline": Outside({"t.py": BLOCK + ROMAN}, ("--package-path", "t.py"), [SIXTY]),
    "options": Outside(
        {
            "requirements.txt": """\
                --extra-index-url https://127.0.0.1:9/simple
                -r more/base.txt
                -c pins.txt
                -e ./libs/mine
                """,
            "more/base.txt": "roman ; python_version > '3'\n",
            "pins.txt": "roman<5\n",
            "libs/mine/setup.py": """\
                from setuptools import setup
                setup(name='mine', version='1', py_modules=['mine'])
                """,
            "libs/mine/mine.py": "V = 5",
            "t.py": f"import mine\n{ROMAN}print('mine', mine.V)",
        },
        ("--package-path", ".", "--module-name", "t"),
        [SIXTY, "mine 5"],
    ),
    "setup_py": Outside(
        {
            "setup.py": SETUP.format("install_requires=['roman']"),
            "trainer/__init__.py": "",
            "trainer/task.py": f"import sys\n{ROMAN}print('args', sys.argv[1:3])",
        },
        ("--package-path", "trainer", "--module-name", "trainer.task", "--job-dir", "out"),
        [SIXTY, "args ['--job-dir', '"],
    ),
    "unknown_package": Outside(
        {"requirements.txt": "roman==99\n", "t.py": ""},
        ("--package-path", ".", "--module-name", "t"),
        state="FAILED",
        verdict=["roman==99"],
    ),
    "notebook": Outside(
        {"book.ipynb": json.dumps(NOTEBOOK)},
        ("--package-path", "book.ipynb", "--", "--lr", "0.1"),
        ["sixty LX ['--lr', '0.1']", "2", "1 file of the working directory, new or changed"],
    ),
}

LOCKED = {
    "uv_lock": Outside(
        {"pyproject.toml": PROJECT + "requires-python = '>=3.10'\n", "main.py": ROMAN},
        ("--package-path", "main.py"),
        [SIXTY],
        prepare=("uv lock --quiet",),
        notes=["after installing uv.lock"],
    ),
    "poetry": Outside(
        {
            "pyproject.toml": """\
                [tool.poetry]
                name = 'mypkg'
                version = '0.1.0'
                description = ''
                authors = ['A <a@example.com>']
                [tool.poetry.dependencies]
                python = '^3.10'
                roman = '^4.1'
                """
            + POETRY,
            "mypkg/__init__.py": "",
            "mypkg/train.py": ROMAN,
        },
        ("--package-path", "mypkg", "--module-name", "mypkg.train"),
        [SIXTY],
    ),
    "conda": Outside(
        {
            "environment.yml": """\
                name: x
                channels: [conda-forge]
                dependencies:
                  - python=3.11
                  - cudatoolkit
                  - pip
                  - pip:
                    - roman==4.2
                """,
            "t.py": ROMAN,
        },
        ("--package-path", ".", "--module-name", "t"),
        [SIXTY, "cudatoolkit"],
    ),
    "workspace": Outside(
        {
            "pyproject.toml": "[tool.uv.workspace]\nmembers = ['packages/*']\n",
            "packages/lib/pyproject.toml": "[project]\nname = 'shared-lib'\nversion = '1'\n"
            + HATCH
            + "[tool.hatch.build.targets.wheel]\npackages = ['shared_lib']\n",
            "packages/lib/shared_lib/__init__.py": "V = 8",
            "packages/app/pyproject.toml": PROJECT.replace("'roman==4.2'", "'roman==4.2', 'shared-lib'")
            + "requires-python = '>=3.10'\n[tool.uv.sources]\nshared-lib = { workspace = true }\n",
            "packages/app/main.py": f"import shared_lib\n{ROMAN}print('shared', shared_lib.V)",
        },
        ("--package-path", "packages/app", "--module-name", "main"),
        [SIXTY, "shared 8"],
        prepare=("git init -q .", "uv lock --quiet"),
    ),
}


def test_files_of_a_program_are_those_of_its_checkout(service: Service) -> None:
    check(service, FILES)


def test_programs_behave_as_under_python(service: Service) -> None:
    check(service, MAINS)


def test_dependencies_are_installed_as_they_are_declared(service: Service) -> None:
    check(service, DECLARED)


@pytest.mark.long
def test_dependencies_of_further_tools_are_installed(service: Service) -> None:
    check(service, LOCKED)


def check(service: Service, programs: Mapping[str, Outside]) -> None:
    """Submit all, wait for their ends, and fail with all that was not as it should be."""
    wrong: dict[str, str] = {}
    config = service.config("outside.yaml", pythonModule=None, **local())
    for name, program in programs.items():
        directory = service.work / name
        for file, text in program.files.items():
            path = directory / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        for command in program.prepare:
            subprocess.run(["bash", "-c", command], cwd=directory, env=os.environ | service.environment, check=True)
        words = list(program.words)
        at = words.index("--") if "--" in words else len(words)
        words[at:at] = ["--config", str(config)]
        done = service.run("jobs", "submit", "training", name, *words, cwd=directory)
        missing = [note for note in program.notes if note not in done.stderr]
        if done.returncode or missing:
            wrong[name] = f"exit {done.returncode}, lacks {missing}: {done.stderr}"
    for name in programs.keys() - wrong.keys():
        if (problem := _problem(service, name, programs[name])) is not None:
            wrong[name] = problem
    if wrong:
        pytest.fail("\n\n".join(f"{name}: {text}" for name, text in wrong.items()), pytrace=False)


def _problem(service: Service, name: str, program: Outside) -> str | None:
    if program.state == "CANCELLED":
        service.wait_for_line(name, "ready")
        service.ok("jobs", "cancel", name)
    state = service.wait_for(name, "SUCCEEDED", "FAILED", "CANCELLED", timeout=400)
    log, verdict = service.log(name), service.value(name, "errorMessage")
    lacks = [text for text in program.prints if text not in log]
    lacks += [text for text in program.verdict if text not in verdict]
    has = [text for text in program.prints_not if text in log]
    if (state, lacks, has) == (program.state, [], []):
        return None
    return f"{state}, lacks {lacks}, has {has}: {verdict}\n{log}"
