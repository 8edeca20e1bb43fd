"""`jobs files` and `jobs download`, against a server with the files of a job."""

import json
from pathlib import Path

import pytest

from integration.commands.conftest import Jobs
from trainyard import Client
from trainyard_cli.capabilities.files.commands import is_safe
from trainyard_cli.client import Client as HttpClient
from trainyard_protocol.answers.files import FileEntry
from trainyard_protocol.errors import Unavailable


@pytest.fixture
def job_dir(client: Client, tmp_path: Path) -> Path:
    made = tmp_path / "runs" / "digits"
    (made / "model" / "empty").mkdir(parents=True)
    (made / "model" / "weights.bin").write_bytes(b"w" * 1500)
    (made / "model" / "loop").symlink_to(made)
    (made / "notes\x1b[31m.txt").write_text("hello")
    (made / "out").symlink_to("/etc/passwd")
    (made / "latest").symlink_to("model/weights.bin")
    client.submit(module_name="trainer.task", package_path="trainer", job_id="digits", job_dir=str(made), args=["0"])
    return made


def test_files_are_listed_for_people_and_for_programs(jobs: Jobs, job_dir: Path) -> None:
    code, text = jobs("files digits")
    assert code == 0, text
    lines = [line.split()[:2] for line in text.splitlines()]
    assert ["model/"] in [line[:1] for line in lines]
    assert ["notes.txt", "5"] in lines
    assert "\x1b" not in text
    assert "3 files" not in text
    assert "2 files, 5 B" in text  # a link's size is counted where it leads
    code, text = jobs("files digits model -r -o json")
    rows = {row["name"]: row for row in json.loads(text[: text.rindex("]") + 1])}
    assert set(rows) == {"empty", "loop", "weights.bin"}
    assert rows["weights.bin"]["size"] == 1500
    assert rows["loop"] == {**rows["loop"], "kind": "directory", "is_link": True}
    code, text = jobs("files digits -r -o json")
    assert {"model/weights.bin", "model/empty"} <= {row["name"] for row in json.loads(text[: text.rindex("]") + 1])}
    code, text = jobs("files digits ./model/weights.bin")
    assert (code, "weights.bin  1.5 kB" in text) == (0, True), text
    for path, says in (
        ("none", "There is no none in the job-dir."),
        ("../x", "without '..'"),
        ("out", "a link to outside the job-dir"),
    ):
        code, text = jobs(f"files digits {path}")
        assert (code, says in text) == (1, True), text


def test_file_and_directory_are_downloaded_whole(jobs: Jobs, job_dir: Path, tmp_path: Path) -> None:
    assert jobs("download digits model/weights.bin") == (0, "weights.bin\n")
    assert (tmp_path / "weights.bin").read_bytes() == b"w" * 1500
    code, text = jobs("download digits model/weights.bin")
    assert (code, "weights.bin exists. Add --force" in text) == (1, True), text
    (job_dir / "model" / "weights.bin").write_bytes(b"new")
    assert jobs("download digits model/weights.bin --force")[0] == 0
    assert (tmp_path / "weights.bin").read_bytes() == b"new"
    code, text = jobs("download digits model/weights.bin none/x")
    assert (code, "create it first" in text) == (1, True), text

    code, text = jobs("download digits . all")
    assert code == 0, text
    there = sorted(str(path.relative_to("all")) for path in Path("all").rglob("*"))
    assert there == ["latest", "model", "model/empty", "model/weights.bin", "notes\x1b[31m.txt"]
    assert "Left out, since they are links" in text
    assert "'out'" in text
    assert "'model/loop'" in text
    assert not list(tmp_path.glob(".*part"))

    assert jobs("download digits model all")[0] == 1
    (tmp_path / "all" / "model" / "mine").touch()
    (job_dir / "model" / "weights.bin").write_bytes(b"newer")
    assert jobs("download digits model all --force")[0] == 0
    assert (tmp_path / "all" / "model" / "weights.bin").read_bytes() == b"newer"
    assert (tmp_path / "all" / "model" / "mine").exists()


def test_nothing_is_written_outside(jobs: Jobs, job_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "digits").mkdir()
    (tmp_path / "all" / "digits" / "model").symlink_to(tmp_path / "elsewhere")
    code, text = jobs("download digits . all --force")
    assert (code, "a link to outside" in text) == (1, True), text
    assert not list((tmp_path / "elsewhere").iterdir())

    real = HttpClient.files
    names = ("..", "../../x", "a/b", ".", "", "a\\b")
    odd = [FileEntry(name=name, kind=kind) for name in names for kind in ("file", "directory")]
    monkeypatch.setattr(HttpClient, "files", lambda *given: iter([*real(*given), *odd]))
    code, text = jobs("download digits model hostile")
    assert code == 0, text
    assert sorted(path.name for path in Path("hostile").iterdir()) == ["empty", "weights.bin"]
    assert "Left out: '../../x', which is not a valid file name." in text
    assert [name for name in ("a", "..a", "a b", "ü") if not is_safe(name)] == []


def test_cut_download_begins_again(jobs: Jobs, job_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real, calls = HttpClient._download, []

    def cut(self: HttpClient, *given: object) -> None:
        calls.append(given)
        if len(calls) < 3:
            raise Unavailable("cut")
        real(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr("trainyard_cli.client.RETRY_DELAYS", (0.0, 0.0))
    monkeypatch.setattr(HttpClient, "_download", cut)
    assert jobs("download digits model/weights.bin")[0] == 0
    assert len(calls) == 3
    monkeypatch.setattr(HttpClient, "_download", lambda *_: (_ for _ in ()).throw(Unavailable("cut")))
    assert jobs("download digits model/weights.bin other") == (1, "ERROR: cut\n")
    assert not (tmp_path / "other").exists()


def test_download_shows_its_progress(
    jobs: Jobs, job_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("trainyard_cli.capabilities.files.commands.is_live", lambda _: True)
    code, text = jobs("download digits . all")
    assert code == 0, text
    assert "3 files" in text
    assert "3.0/3.0 kB" in text
    assert (tmp_path / "all" / "latest").read_bytes() == b"w" * 1500
