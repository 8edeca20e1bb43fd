"""W&B's functions in a job: lines, parameters, images."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainyard.wandb as wandb


@pytest.fixture(autouse=True)
def run() -> Iterator[None]:
    yield
    wandb.finish()
    dict.clear(wandb.config)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_is_logged_is_a_line_at_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    with wandb.init(project="x", entity="y", tags=["z"]) as started:
        wandb.log({"loss": 0.5, "val": {"acc": 0.25}, "step": 9, "note": "text"})
        wandb.log({"loss": 0.25}, commit=False)
        wandb.log({"lr": 0.1})
        wandb.log({"loss": 0.125}, step=10)
        wandb.log({"lr": 0.2}, step=10)
        started.summary["best"] = 0.125
    first, second, third, fourth, last = lines(capsys)
    assert first == {"event": "progress", "step": 0, "loss": 0.5, "val/acc": 0.25}
    assert second == {"event": "progress", "step": 1, "loss": 0.25, "lr": 0.1}
    assert (third["step"], third["loss"], fourth["step"], fourth["lr"]) == (10, 0.125, 10, 0.2)
    assert (last["best"], wandb.run) == (0.125, None)
    with pytest.raises(RuntimeError, match=r"wandb.init\(\)"):
        wandb.log({"loss": 1})
    with pytest.raises(AttributeError, match=r"trainyard\.wandb has no Table: it has init"):
        wandb.Table  # noqa: B018


def test_the_config_is_parameters_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            calls.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("MLFLOW_RUN_ID", "job-7")
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
        wandb.init(config={"lr": 0.1, "model": {"layers": 3}})
        wandb.config.batch = 32
        server.shutdown()
        thread.join()
    assert {path for path, _, _ in calls} == {"/api/2.0/mlflow/runs/log-batch"}
    assert {token for _, token, _ in calls} == {"Bearer secret"}
    assert [call["params"] for _, _, call in calls] == [
        [{"key": "lr", "value": "0.1"}, {"key": "model/layers", "value": "3"}],
        [{"key": "batch", "value": "32"}],
    ]
    assert (calls[0][2]["run_id"], wandb.config.lr, wandb.config["batch"]) == ("job-7", 0.1, 32)


def test_a_server_that_is_away_ends_no_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_RUN_ID", "job-7")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    wandb.init(config={"lr": 0.1})
    assert "trainyard: The config is not recorded" in capsys.readouterr().err


def test_images_are_files_of_the_job_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_JOB_DIR", str(tmp_path / "job"))
    (tmp_path / "a.jpg").write_bytes(b"an image")
    wandb.init()
    wandb.log({"samples/../x": wandb.Image(tmp_path / "a.jpg"), "loss": 1})
    wandb.log({"gone": wandb.Image(tmp_path / "missing.png")})
    (written,) = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
    assert written.relative_to(tmp_path / "job").as_posix() == "images/samples_.._x/0.jpg"
    output = capsys.readouterr()
    assert json.loads(output.out) == {"event": "progress", "step": 0, "loss": 1}
    assert "The image gone is not written" in output.err
