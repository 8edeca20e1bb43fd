"""Pages and archives of the files of a job, on a local path and in a bucket: what a job wrote is hostile."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from integration.api.api_support import VERA, Server
from integration.test_job_files import api, ask, bucket, emulator, job_dir, refusal, submit
from trainyard_server.services.measurements import job_files
from trainyard_server.storage.job_files.archive import LEFT_OUT, zip_blocks

__all__ = ["api", "bucket", "emulator", "job_dir"]

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def page(api: Server, path: str | None = None, *, below: str = "/view", job_id: str = "job") -> str:
    params = {} if path is None else {"path": path}
    answer = api.client.get(f"/projects/p/jobs/{job_id}/files{below}", params=params, headers=VERA)
    assert answer.status_code == 200, answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    return answer.text


def archive(api: Server, **params: str) -> dict[str, bytes]:
    answer = ask(api, "/archive", **params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"].startswith("attachment; ")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as opened:
        assert opened.testzip() is None
        return {name: opened.read(name) for name in opened.namelist()}


def test_page_of_a_file_shows_it_escaped_and_an_image_is_a_download_that_runs_nothing(
    api: Server, job_dir: Path
) -> None:
    submit(api, str(job_dir))
    (job_dir / "page.html").write_text("<script>alert(1)</script>")
    (job_dir / "a.csv").write_text("name,loss\n<b>x</b>,0.1\n")
    (job_dir / "README.md").write_text("# Results\n\n<b>x</b> [more](a.csv)")
    (job_dir / "draw.svg").write_text(SVG)
    (job_dir / "empty").touch()
    (job_dir / "long.txt").write_bytes(b"x" * 600_000)
    (job_dir / "out").symlink_to("/etc/passwd")
    for path, says in {
        "page.html": "&lt;script&gt;alert(1)&lt;/script&gt;",
        "a.csv": "<td>&lt;b&gt;x&lt;/b&gt;</td><td>0.1</td>",
        "empty": "An empty file",
        "long.txt": "337,856 bytes more are not shown",
        "model/weights": "No preview",
        "model": "A directory",
        "none": "There is no none",
        "../x": "without &#39;..&#39;",
        "out": "a link to outside the job-dir",
    }.items():
        assert says in page(api, path)
    markdown = page(api, "README.md")
    assert "<h1>Results</h1>" in markdown
    assert '&lt;b&gt;x&lt;/b&gt; <a href="/projects/p/jobs/job/files/view?path=a.csv">more</a>' in markdown
    image = page(api, "draw.svg")
    assert '<img src="/trainyard/v1/projects/p/jobs/job/files/content?path=draw.svg" alt="draw.svg">' in image
    assert "alert" not in image
    # By itself an image is saved, and even if it were shown it could do nothing.
    for name, kind in {"draw.svg": "image/svg+xml", "page.html": "application/octet-stream"}.items():
        answer = ask(api, "/content", path=name)
        assert answer.headers["content-type"] == kind
        assert answer.headers["content-disposition"].startswith("attachment; ")
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_page_of_a_directory_has_its_size_and_its_images_by_step(api: Server, job_dir: Path) -> None:
    submit(api, str(job_dir))
    for step in (9, 10):
        path = job_dir / "images" / '"><script>' / f"{step}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"png")
    shown = page(api, below="")
    assert "4 files, 2.6 MB" in shown
    assert "/files/archive?path=" in shown
    assert '<figure class="card steps" data-steps="[9, 10]"' in shown
    assert 'aria-valuetext="step 10"' in shown
    assert '"><script>' not in shown
    assert "1 file, 2.6 MB" in page(api, "model", below="")


def test_archive_has_the_files_of_a_directory_and_says_what_it_leaves_out(api: Server, job_dir: Path) -> None:
    submit(api, str(job_dir))
    (job_dir / "model" / "deep" / "er").mkdir(parents=True)
    (job_dir / "model" / "deep" / "er" / "ü.txt").write_text("ü")
    (job_dir / "model" / "secret").symlink_to("/etc/passwd")
    (job_dir / "model" / "up").symlink_to("..")
    (job_dir / "model" / "same").symlink_to("deep/er/ü.txt")
    (job_dir / "model" / "..\\..\\evil").write_text("x")
    (job_dir / "model" / "two\nlines").write_text("x")
    found = archive(api, path="model")
    left_out = found.pop(LEFT_OUT).decode()
    assert found == {"weights": bytes(range(256)) * 10_000, "deep/er/ü.txt": "ü".encode(), "same": "ü".encode()}
    assert sorted(left_out.splitlines()[1:]) == sorted([repr(r"..\..\evil"), "'secret'", repr("two\nlines"), "'up'"])
    assert "model/weights" in archive(api)
    assert refusal(ask(api, "/archive", path="model/weights")) == (400, "model/weights is not a directory.")
    assert refusal(ask(api, "/archive", path="none"))[0] == 404
    assert refusal(ask(api, "/archive", path=".."))[0] == 400


def test_large_tree_is_counted_and_archived_up_to_a_limit(
    api: Server, job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(api, str(job_dir))
    monkeypatch.setattr(job_files, "MAX_ENTRIES", 3)
    assert "3 files and directories" not in page(api, below="")
    (job_dir / "model" / "more").touch()
    shown = page(api, below="")
    assert "More than " in shown
    assert "trainyard jobs download job ." in shown
    code, message = refusal(ask(api, "/archive"))
    assert (code, "at most 3 files and directories and 100 GB" in message) == (400, True), message
    assert archive(api, path="model").keys() == {"weights", "more"}
    monkeypatch.setattr(job_files, "MAX_ARCHIVE_BYTES", 100)
    assert "jobs download job model" in refusal(ask(api, "/archive", path="model"))[1]


def test_files_of_a_bucket_are_shown_and_archived(api: Server, bucket: Any) -> None:
    for name, content in {
        "runs/digits/a.txt": "hello",
        "runs/digits/model/weights": "w" * 1000,
        "runs/digits/model/": "",
        "runs/digits/model/odd\\name": "x",
        "runs/digits/images/a/1.png": "png",
        "runs/digits/images/a/2.png": "png",
        "runs/digits/empty": "",
        "runs/digits-2/other": "of another job",
    }.items():
        bucket.blob(name).upload_from_string(content)
    submit(api, "gs://models/runs/digits/")
    assert ask(api, "/entry", path="a.txt").json()["size"] == 5
    assert ask(api, "/entry", path="model").json()["kind"] == "directory"
    assert ask(api, "/entry", path="").json()["kind"] == "directory"
    assert refusal(ask(api, "/entry", path="none")) == (404, "There is no none in the job-dir.")
    assert "<code>hello</code>" in page(api, "a.txt")
    assert "An empty file" in page(api, "empty")
    assert 'data-steps="[1, 2]"' in page(api, below="")
    found = archive(api)
    assert repr("model/odd\\name") in found.pop(LEFT_OUT).decode()
    assert found.keys() == {"a.txt", "empty", "model/weights", "images/a/1.png", "images/a/2.png"}
    assert archive(api, path="model").keys() == {"weights", LEFT_OUT}


def test_file_that_is_gone_or_shorter_is_said(api: Server, job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(api, str(job_dir))
    (job_dir / "rotated").touch()
    real = zip_blocks

    def later(*given: Any) -> Any:
        (job_dir / "rotated").unlink()
        return real(*given)

    monkeypatch.setattr(job_files, "zip_blocks", later)
    assert "'rotated'" in archive(api)[LEFT_OUT].decode()
