"""Sentences about failures, as the environment of a run prints them behind the traceback of a program."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trainyard_agent.staging.inside import hints
from trainyard_agent.staging.inside.files import PTH, files
from trainyard_protocol.job.ranks import RANK_NAMES, RankPlace, rank_variables

MANIFEST = {
    "left_out": [
        {"name": "data", "reason": "ignored by git"},
        {"name": "src/helpers.py", "reason": "ignored by git"},
        {"name": "datasets", "reason": "ignored by git"},
    ]
}
GANG = rank_variables(RankPlace(1, ("h:1", "i:2"), accelerators=2))
PS = {"TF_CONFIG": '{"task": {"type": "ps"}}'}


@dataclass
class Environment:
    """The packages of a run and its program's directory, and a Python that sees them."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def program(self) -> Path:
        return self.root / "program"

    def run(self, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
        (self.program / "t.py").write_text(textwrap.dedent(program))
        start = f"import site, sys; site.addsitedir({str(self.root)!r}); sys.argv[:] = ['t.py']; "
        start += "exec(compile(open('t.py').read(), 't.py', 'exec'), {'__name__': '__main__'})"
        environment = {"PATH": os.environ["PATH"], "CLOUD_ML_JOB": "{}", **variables}
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", start],
            cwd=self.program,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def message(self, program: str, **variables: str) -> str:
        """The line about the failure of a program."""
        lines = [line for line in self.run(program, **variables).stderr.splitlines() if line.startswith("trainyard: ")]
        assert len(lines) <= 1, lines
        return lines[0].removeprefix("trainyard: ") if lines else ""


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    for name, content in files().items():
        (tmp_path / name).write_text(content)
    (tmp_path / "program").mkdir()
    return Environment(tmp_path)


def manifest(environment: Environment, **more: object) -> None:
    (environment.root / "trainyard_program").mkdir()
    (environment.root / "trainyard_program" / "program.json").write_text(json.dumps({**MANIFEST, **more}))


def test_failures_that_differ_from_the_programs_own_machine_are_explained(environment: Environment) -> None:
    manifest(environment)
    (environment.program / "lib" / "inner").mkdir(parents=True)
    (environment.program / "lib" / "inner" / "__init__.py").touch()
    storage = "use google-cloud-storage, whose client finds the gs:// of this service."
    alone = "a job of one replica has no RANK, as under `python`: --worker-count N"
    cases: list[tuple[str, dict[str, str], str]] = [
        ("import roman9", {}, "no package here has the module roman9: declare roman9 in requirements.txt or pyproject"),
        ("import yaml", {}, "no package here has the module yaml: declare pyyaml in requirements.txt"),
        ("import cv2", {}, "declare opencv-python-headless in requirements.txt"),
        ("import pkg_resources", {}, "setuptools 81 removed pkg_resources: declare setuptools<81 in requirements.txt"),
        ("import google.cloud.storage", {}, "declare google"),
        (
            "import torch.nn",
            {},
            "declare torch in requirements.txt or pyproject.toml, or submit with --runtime-version torch.",
        ),
        ("import tensorflow as tf", {}, "or submit with --runtime-version 2.15."),
        (
            "import helpers",
            {},
            "helpers lies at src/helpers.py, which was not sent: ignored by git; --include src/helpers.py",
        ),
        ("import datasets", {}, "If a package of that name is meant: declare it in requirements.txt"),
        ("import inner", {}, "inner lies at lib/inner, which Python does not look into: --env PYTHONPATH=lib adds it."),
        ("try:\n    import roman9\nexcept ImportError as e:\n    raise RuntimeError('x') from e", {}, "declare roman9"),
        ("try:\n    import roman9\nexcept ImportError:\n    raise RuntimeError('x')", {}, "declare roman9"),
        ("try:\n    import roman9\nexcept ImportError:\n    raise RuntimeError('x') from None", {}, ""),
        (
            "open('/gcs/bucket/a')",
            {},
            "/gcs is Cloud Storage FUSE of Vertex AI, which is not here: read and write gs://",
        ),
        ("open('data/train.csv')", {}, "data was not sent: ignored by git; --include data sends it, --mount reads"),
        ("import os; open(os.path.abspath('data/train.csv'))", {}, "data was not sent: ignored by git"),
        ("import os; os.mkdir('a'); os.chdir('a'); open('../data/a')", {}, ""),
        ("open('other/train.csv')", {}, ""),
        ("import subprocess as s; s.check_call(['gsutil', 'cp'], env={'PATH': ''})", {}, storage),
        ("import subprocess as s; s.check_call('gcloud x', shell=True, env={'PATH': ''})", {}, storage),
        ("import subprocess as s; s.check_call(['false'])", {}, ""),
        ("import os; os.environ['RANK']", {}, alone),
        ("import os; os.environ['RANK']", PS, "parameter servers and evaluators have no RANK"),
        ("import os; os.environ['LOCAL_RANK']", GANG, "a replica with several accelerators has no LOCAL_RANK"),
        ("import os; os.environ['HOME_OF_X']", {}, ""),
        ("raise ValueError('env:// rendezvous: environment variable RANK expected, but not set')", {}, alone),
        ("raise ValueError('Number of processes must be defined.')", GANG, 'int(os.environ["JAX_NUM_PROCESSES"])'),
        (
            "raise ValueError('coordinator_address should be defined.')",
            {},
            "a job of one replica has no JAX_NUM_PROCESSES",
        ),
        ("raise ValueError('x')", {}, ""),
        ("raise SystemExit(3)", {}, ""),
        ("print('all is well')", {}, ""),
        ("import sys; sys.excepthook = lambda *_: print('mine'); import roman9", {}, "declare roman9"),
        ("import sys; sys.stderr = None; import roman9", {}, "declare roman9"),
    ]
    wrong = {}
    for program, variables, expected in cases:
        message = environment.message(program, **variables)
        if expected not in message or bool(expected) != bool(message):
            wrong[program] = message
    assert not wrong


def test_traceback_and_exit_code_are_those_of_the_program(environment: Environment) -> None:
    program = "import roman9\n"
    plain = subprocess.run(
        [sys.executable, "-c", program], cwd=environment.program, capture_output=True, text=True, check=False
    )
    ended = environment.run(program)
    traceback, _, hint = ended.stderr.rpartition("trainyard: ")
    assert ended.returncode == plain.returncode == 1
    assert (
        traceback.splitlines()[-1] == plain.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'roman9'"
    )
    assert hint.endswith("\n")


def test_nothing_is_loaded_before_a_failure_and_outside_of_jobs_nothing_at_all(environment: Environment) -> None:
    modules = (
        "import sys; print(sorted(name for name in sys.modules if name.startswith('_trainyard')), 're' in sys.modules)"
    )
    assert environment.run(modules).stdout == "['_trainyard_startup'] False\n"
    ended = environment.run(f"import os; {modules}; import roman9", CLOUD_ML_JOB="{}")
    assert ended.stdout == "['_trainyard_startup'] False\n"
    outside = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import site; site.addsitedir({str(environment.root)!r}); {modules}"],
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    assert outside.stdout == "[] False\n"
    assert files()[PTH].count("\n") == 1


def test_environment_file_of_conda_is_named_where_a_module_is_missing(environment: Environment) -> None:
    (environment.program / "environment.yml").touch()
    assert environment.message("import roman9").endswith(" environment.yml was not installed.")
    manifest(environment, install={"steps": [{"what": "conda", "file": "environment.yml"}]})
    assert environment.message("import roman9").endswith(" Of environment.yml only the pip part was installed.")


def test_every_variable_of_a_rank_is_explained_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK_NAMES:
        monkeypatch.delenv(name, raising=False)
    assert [name for name in RANK_NAMES if not hints.explain(KeyError(name))] == []


def test_program_that_has_made_itself_a_directory_for_gs_is_told_where_it_is(tmp_path: Path) -> None:
    program, other, made = tmp_path / "t.py", tmp_path / "other.py", tmp_path / "gcs"
    program.write_text(f"os.makedirs('{made}/bucket')")
    other.touch()
    assert hints.of_directory(None, str(program), str(made)) == ""
    made.mkdir()
    assert hints.of_directory(None, str(program), str(made)).startswith("/gcs is Cloud Storage FUSE of Vertex AI")
    assert hints.of_directory(None, str(other), str(made)) == ""
    assert hints.of_directory(None, None, str(made)) == ""
