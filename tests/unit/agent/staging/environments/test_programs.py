"""Programs whose files declare what they need, which their runs' environments then have."""

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from beds.installed import program_wheel
from beds.run_ids import unique_run
from trainyard_agent.staging import uv_program
from trainyard_agent.staging.base import Staging
from trainyard_protocol.states import Reason
from unit.agent.staging.environments.environment_lab import OTHER, RUN, Staged, run, wheel
from unit.agent.stub_server import run_order

PYPROJECT = '[project]\nname = "app"\nversion = "1"\nrequires-python = "{python}"\ndependencies = ["somewhere"]\n'
SETUP = (
    'from setuptools import setup\nsetup(name="{name}", version="1", py_modules=["{name}"], install_requires={needs})\n'
)
REQUIREMENTS = {"what": "requirements", "file": "requirements.txt"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place with packages."""
    directory = tmp_path / "index"
    for name in ("somewhere", "elsewhere"):
        wheel(directory, name, f"WHO = {name!r}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


async def prepared(staged: Staged, files: dict[str, str | bytes], *steps: dict[str, Any], run_id: str = RUN) -> Staging:
    directory = staged.root / f"program-{run_id}"
    return await staged.prepare(staged.upload(program_wheel.build(directory, files, steps)), run_id=run_id)


async def test_program_has_what_its_files_declare_in_each_way(staged: Staged, index: Path) -> None:
    """Each way has a module of its own, in one environment."""
    for name in ("named", "encoded", "hashed", "included", "scripted", "applied", "by_conda"):
        wheel(index, name, f"WHO = {name!r}\n")
    digest = hashlib.sha256((index / "hashed-1-py3-none-any.whl").read_bytes()).hexdigest()
    files: dict[str, str | bytes] = {
        "requirements.txt": "encoded\r\n".encode("utf-16"),
        "hashes.txt": f"hashed==1 \\\n  --hash=sha256:{digest}\n",
        "options.txt": "--pre\n--no-index\nnowhere; python_version < '3'\n-r more/r.txt\n-c more/c.txt\n-e libs/lib\n",
        "more/r.txt": "included  # a comment\n",
        "more/c.txt": "included<2",
        "libs/lib/setup.py": SETUP.format(name="lib", needs=["elsewhere"]),
        "libs/lib/lib.py": "WHO = 'lib'\n",
        "t.py": "# /// script\n# dependencies = ['scripted']\n# ///\n",
        "pyproject.toml": PYPROJECT.format(python=">=3").replace("somewhere", "applied"),
        "environment.yml": "dependencies:\n- python=3.10\n- pip:\n  - by_conda\n",
        "app/setup.py": SETUP.format(name="app", needs=["somewhere"]),
        "app/app.py": "WHO = 'app'\n",
    }
    ready = await prepared(
        staged,
        files,
        {"what": "packages", "packages": ["named"]},
        *({**REQUIREMENTS, "file": name} for name in ("requirements.txt", "hashes.txt", "options.txt")),
        {"what": "script", "file": "t.py"},
        {"what": "pyproject", "file": "pyproject.toml"},
        {"what": "conda", "file": "environment.yml"},
        {"what": "project", "directory": "app", "dependencies": True},
    )
    assert ready.phase == "ready", ready.message
    names = "named encoded hashed included lib elsewhere scripted applied by_conda app somewhere"
    program = f"import httpx, trainyard; print(*(__import__(name).WHO for name in {names.split()}))"
    assert run(ready.python, program) == names


async def test_program_that_declares_what_cannot_be_followed_fails_with_the_reason(staged: Staged, index: Path) -> None:
    leads_out = "is outside the uploaded files"
    refused: list[tuple[dict[str, str | bytes], dict[str, Any], str]] = [
        ({}, {"what": "project", "directory": ".."}, leads_out),
        ({}, {"what": "spells"}, "The agent knows no installation 'spells'"),
        (
            {"pyproject.toml": '[tool.uv.sources]\nx = { path = "../x" }\n[project]\nname = "a"\nversion = "1"\n'},
            {"what": "pyproject", "file": "pyproject.toml"},
            leads_out,
        ),
        (
            {"pyproject.toml": PYPROJECT.format(python=">=3.99")},
            {"what": "pyproject", "file": "pyproject.toml"},
            "The program requires Python >=3.99 (requires-python in pyproject.toml), and its environment has 3.",
        ),
        (
            {"requirements.txt": "nowhere\n"},
            REQUIREMENTS,
            "Because nowhere was not found in the provided package locations and you require nowhere",
        ),
    ]
    wrong = []
    for number, (files, step, words) in enumerate(refused):
        failed = await prepared(staged, files, step, run_id=unique_run(f"{number:x}"))
        if (failed.phase, failed.reason) != ("failed", Reason.PACKAGES_FAILED) or words not in failed.message:
            wrong.append((step, words, failed.message))
    assert not wrong


async def test_program_without_uv_is_installed_by_pip(
    staged: Staged, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_program, "find", lambda: "")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    files: dict[str, str | bytes] = {
        "requirements.txt": "--prefer-binary\nsomewhere\n",
        "pyproject.toml": PYPROJECT.format(python=">=3").replace("somewhere", "elsewhere"),
    }
    ready = await prepared(staged, files, REQUIREMENTS, {"what": "pyproject", "file": "pyproject.toml"})
    assert ready.phase == "ready", ready.message
    assert run(ready.python, "import somewhere, elsewhere, httpx; print(somewhere.WHO)") == "somewhere"


async def test_program_does_not_fetch_what_the_base_has_and_replaces_what_does_not_fit(
    staged: Staged, index: Path
) -> None:
    wheel(index, "psutil", "WHO = 'older'\n")
    ready = await prepared(staged, {"requirements.txt": "httpx\nsomewhere\npsutil<2\n"}, REQUIREMENTS)
    assert ready.phase == "ready", ready.message
    site_packages = next(Path(ready.python).parent.parent.glob("lib/python*/site-packages"))
    names = {path.name.partition("-")[0] for path in site_packages.glob("*.dist-info")}
    assert names == {"trainyard_program", "somewhere", "psutil"}
    program = "import httpx, psutil; from importlib.metadata import version; print(psutil.WHO, version('psutil'))"
    assert run(ready.python, program) == "older 1"


async def test_edited_program_has_what_was_installed_for_the_same_declarations(staged: Staged, index: Path) -> None:
    def edited(text: str) -> dict[str, str | bytes]:
        return {"requirements.txt": "somewhere\n", "t.py": text, "setup.py": SETUP.format(name="app", needs=[])}

    project = {"what": "project", "directory": ".", "dependencies": False}
    first = await prepared(staged, {**edited("1"), "app.py": "WHO = 1\n"}, REQUIREMENTS, project)
    assert first.phase == "ready", first.message
    shutil.rmtree(index)
    index.mkdir()
    second = await prepared(staged, {**edited("2"), "app.py": "WHO = 2\n"}, REQUIREMENTS, project, run_id=OTHER)
    assert second.phase == "ready", second.message
    assert run(second.python, "import app, somewhere; print(app.WHO, somewhere.WHO)") == "2 somewhere"
    assert second.resolved is not None
    assert second.resolved.installed == ("What it declares was installed for an earlier run: nothing is fetched",)


async def test_editable_package_of_a_kept_environment_is_that_of_its_run(staged: Staged, index: Path) -> None:
    files: dict[str, str | bytes] = {
        "requirements.txt": "-e ./lib\n",
        "lib/setup.py": SETUP.format(name="lib", needs=[]),
        "lib/lib.py": "from pathlib import Path\nWHO = (Path(__file__).parent / 'data').read_text()\n",
        "lib/data": "data",
    }
    for run_id in (RUN, OTHER):
        ready = await prepared(staged, files, REQUIREMENTS, run_id=run_id)
        assert ready.phase == "ready", ready.message
        printed = run(ready.python, "import lib; print(lib.WHO, lib.__file__)")
        assert printed.startswith(f"data {staged.root}/environments/{run_id}/")


async def test_program_that_declares_a_lock_sees_nothing_of_the_base(staged: Staged, index: Path) -> None:
    file = index / "somewhere-1-py3-none-any.whl"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    lock = f"""
lock-version = "1.0"
created-by = "tests"
[[packages]]
name = "somewhere"
version = "1"
wheels = [{{ path = "wheels/{file.name}", hashes = {{ sha256 = "{digest}" }} }}]
"""
    locked: dict[str, str | bytes] = {"pylock.toml": lock, f"wheels/{file.name}": file.read_bytes()}
    ready = await prepared(staged, locked, {"what": "lock", "file": "pylock.toml"})
    assert ready.phase == "ready", ready.message
    assert run(ready.python, "import somewhere, trainyard; print(somewhere.WHO)") == "somewhere"
    assert subprocess.run([ready.python, "-c", "import httpx"], capture_output=True, check=False).returncode == 1


async def test_installation_gets_the_secrets_of_indexes_and_no_others(staged: Staged, index: Path) -> None:
    staged.server.secrets = {"KEY": "s3cret-key", "TOKEN": "s3cret-token", "MODEL": "s3cret-model"}
    setup = """
import os, sys
print({name: os.environ.get(name) for name in ("PIP_EXTRA_INDEX_URL", "TOKEN", "MODEL")}, file=sys.stderr)
sys.exit("the wheel fell off")
"""
    files: dict[str, str | bytes] = {
        "requirements.txt": "./lib\n./${TOKEN}\n",
        "s3cret-token/x": "",
        "lib/setup.py": setup,
        "run.sh": "echo ${MODEL}\n",
    }
    uri = staged.upload(program_wheel.build(staged.root / "program", files, [REQUIREMENTS]))
    references = [{"name": "KEY", "env": "PIP_EXTRA_INDEX_URL"}, {"name": "TOKEN"}, {"name": "MODEL"}]
    staged.server.orders[RUN] = run_order(RUN, packageUris=[uri], secrets=references)
    failed = await staged.prepare(uri, secrets=references)
    assert failed.reason is Reason.PACKAGES_FAILED
    assert "'TOKEN': '***'" in failed.message.replace("[hidden]", "***")
    log = (staged.root / "environments" / RUN / "install.log").read_text()
    for text in (failed.message, log):
        assert "s3cret" not in text
    assert "'MODEL': None" in log


@contextmanager
def index_after(failures: int, directory: Path) -> Iterator[str]:
    """The URL of an index in a directory, which answers so many requests with 503 before."""
    left = [503] * failures

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, directory=str(directory))

        def do_GET(self) -> None:
            if left:
                self.send_error(left.pop())
            else:
                super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
async def test_index_that_is_away_is_waited_for_and_then_the_run_is_given_back(
    staged: Staged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "index", "somewhere")
    (tmp_path / "simple" / "somewhere").mkdir(parents=True)
    (tmp_path / "simple" / "somewhere" / "index.html").write_text(
        '<a href="/index/somewhere-1-py3-none-any.whl">somewhere-1-py3-none-any.whl</a>'
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    program: dict[str, str | bytes] = {"requirements.txt": "somewhere\n"}
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with index_after(1, tmp_path) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        ready = await prepared(staged, program, REQUIREMENTS)
    assert ready.phase == "ready", ready.message
    waits = "asks a package index again: HTTP status server error (503"
    assert any(activity.startswith(waits) for activity in staged.activities)
    assert ready.resolved is not None
    assert any(note.startswith("A package index was away for ") for note in ready.resolved.installed)

    staged.patience_s = 0.0
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    given_back = await prepared(staged, {**program, "more": ""}, REQUIREMENTS, run_id=OTHER)
    assert (given_back.phase, given_back.reason) == ("failed", Reason.GIVEN_BACK)
    assert given_back.message.startswith(
        "A package index has not answered for 0 s: error sending request for url (http"
    )
