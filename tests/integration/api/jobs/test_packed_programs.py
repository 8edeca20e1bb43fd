"""Programs whose files a browser sends: packed by a process with limits, and stored like any package."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from integration.api.api_support import ALICE, Clock, Server, eventually, server
from integration.api.tars import tar_of
from trainyard_server.services.jobs import program_packing

PATH = "/upload/trainyard/v1/projects/p/programs"
PROGRAM = {"train.py": b"print(1)", "requirements.txt": b"numpy\n", ".env": b"A=a-secret", "x.bin": bytes(70)}


def sent(api: Server, body: bytes, **query: str) -> httpx.Response:
    return api.client.post(PATH, content=body, params=query, headers=ALICE)


def staging(api: Server) -> Path:
    return api.use_cases.backend.settings.data_dir / "staging"


@pytest.fixture
def entire(api: Server) -> Iterator[Server]:
    """The server of the test, which leaves no files of programs behind."""
    yield api
    assert list(staging(api).glob(".upload-*")) == []


def test_program_becomes_a_package_with_its_plan(entire: Server) -> None:
    plan = sent(entire, tar_of(PROGRAM)).json()
    assert [plan[name] for name in ("problem", "entry", "module")] == ["", "train.py", "train"]
    assert plan["command"] == ["python", "train.py"]
    files = {"requirements.txt": 6, "train.py": 8, "x.bin": 70}
    assert plan["files"] == [{"name": name, "size": size} for name, size in files.items()]
    assert (plan["file_count"], plan["bytes"], plan["installs"]) == (3, 84, ["requirements.txt"])
    assert plan["left_out"] == [{"name": ".env", "reason": "looks like a secret: environment file"}]
    assert sent(entire, tar_of(PROGRAM)).json()["uri"] == plan["uri"], "the same files are the same package"
    created = entire.create(packageUris=[plan["uri"]], pythonModule=plan["module"])
    assert created["trainingInput"]["packageUris"] == [plan["uri"]]


def test_program_that_could_not_run_is_answered_with_its_problem_and_entries(entire: Server) -> None:
    several = tar_of({"a.py": b"1", "b.py": b"1"})
    answer = sent(entire, several).json()
    assert (answer["uri"], answer["entries"]) == ("", ["a.py", "b.py"])
    assert answer["problem"].startswith("Several files could start the program")
    assert sent(entire, several, entry="b.py").json()["command"] == ["python", "b.py"]
    assert sent(entire, several, entry="b" * 1025).status_code == 400


def test_body_that_is_no_program_is_refused(entire: Server) -> None:
    for body, code, says in (
        (b"no tar", 400, "The body of the request is not a whole tar"),
        (tar_of({"../train.py": b"1"}), 400, "../train.py is not the relative path of a file"),
        (tar_of({str(number): b"" for number in range(10_001)}), 413, "at most 10,000 files"),
    ):
        entire.refusal("POST", PATH, code, says, ALICE, content=body)


def test_source_beyond_memory_or_time_is_refused_and_the_server_goes_on(
    entire: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = sent(entire, tar_of({"train.py": b"[" + b"x," * 8_000_000 + b"]"}))
    assert answer.json()["problem"] == "train.py: is not Python source: it is too large or too deeply nested."
    assert sent(entire, tar_of(PROGRAM)).json()["problem"] == ""
    monkeypatch.setattr(program_packing, "_TIMEOUT_S", 0.001)
    entire.refusal("POST", PATH, 400, "was not read within", ALICE, content=tar_of(PROGRAM))


def test_body_that_is_too_large_is_413_and_files_of_a_killed_server_are_removed(tmp_path: Path, clock: Clock) -> None:
    orphan = tmp_path / "staging" / ".upload-0123" / "program"
    orphan.mkdir(parents=True)
    (orphan / "train.py").write_text("1")
    with server(tmp_path, clock, upload_limit=3000) as api:
        eventually(lambda: not orphan.parent.exists())
        assert sent(api, bytes(3001)).status_code == 413
        assert list(staging(api).glob(".upload-*")) == []
