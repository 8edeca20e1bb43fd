"""W&B's functions in a job: lines, parameters, images."""

import copy
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainyard.wandb as wandb


@pytest.fixture(autouse=True)
def run() -> Iterator[None]:
    wandb._NOTICED.clear()
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


def test_steps_are_those_that_wandb_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    """The history that W&B 0.31 has of the same calls."""
    with wandb.init() as run:
        wandb.log({"a": 1}, step=0)
        wandb.log({"b": 1})  # of step 0, and ends it
        wandb.log({"a": 2}, step=0)  # ignored
        wandb.log({"c": 1})
        wandb.log({"d": 1}, step=10)
        wandb.log({"e": 1}, step=10)
        wandb.log({"f": 1}, step=5)  # ignored
        wandb.log({"g": 1})
        wandb.log({"h": 1}, commit=False)
        wandb.log({"i": 1})
        wandb.log({"j": 1}, step=20, commit=True)
        wandb.log({"k": 1}, step=20)  # ignored
        wandb.log({"l": 1}, commit=False)
        assert run.step == 21
        wandb.log({"m": 1}, step=25, commit=False)
        wandb.log({"l": 2}, step=26)
    output = capsys.readouterr()
    history: dict[int, dict[str, Any]] = {}
    for line in map(json.loads, output.out.splitlines()):
        history.setdefault(line.pop("step"), {}).update({name: line[name] for name in line if name != "event"})
    assert history == {
        0: {"a": 1, "b": 1}, 1: {"c": 1}, 10: {"d": 1, "e": 1, "g": 1}, 11: {"h": 1, "i": 1}, 20: {"j": 1},
        21: {"l": 1}, 25: {"m": 1}, 26: {"l": 2},
    }  # fmt: skip
    assert output.err.count("ignores steps") == 1


def test_what_is_not_kept_ends_no_program_and_is_noticed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_JOB_DIR", str(tmp_path))
    assert wandb.login(key="x")
    run = wandb.init(settings=wandb.Settings(start_method="fork"), config="defaults.yaml")
    table = wandb.Table(columns=["a"])
    table.add_data(1)
    wandb.log({"table": table, "plot": wandb.plot.line(table, "x", "y"), "bins": wandb.Histogram([1]), "loss": 1})
    artifact = wandb.Artifact("model", type="model")
    artifact.add_file("model.pt")
    with artifact.new_file("notes") as file:
        file.write("a note")
    run.log_artifact(artifact).wait()
    wandb.log_artifact(wandb.Artifact("data", "dataset"))
    assert Path(run.use_artifact("data:latest").download()).is_dir()
    wandb.save("model.pt")
    wandb.alert(title="t", text="x")
    run.alert("t", "x")
    run.log_code(".")
    wandb.sklearn.plot_confusion_matrix([], [], [])
    run.unwatch()
    wandb.termlog("a line")
    assert isinstance(table, wandb.Table)
    assert (Path(run.dir), len(wandb.util.generate_id())) == (tmp_path / "wandb", 8)
    assert (list(wandb.Api().runs("x")), copy.deepcopy(table) is not None, float(wandb.log is not None)) == (
        [],
        True,
        1,
    )
    with pytest.raises(wandb.errors.UsageError):
        raise wandb.Error
    output = capsys.readouterr()
    assert output.out.splitlines() == ['{"event": "progress", "step": 0, "loss": 1}']
    for kind in ("Table", "Artifact", "Histogram", "plot.line", "log_artifact", "save", "alert", "sklearn"):
        assert output.err.count(f"trainyard: wandb.{kind} is accepted, but not kept.\n") == 1
    with pytest.raises(AttributeError, match=r"trainyard\.wandb has no Tabel"):
        wandb.Tabel  # noqa: B018
    with pytest.raises(AttributeError, match=r"A run of trainyard\.wandb has no lgo"):
        run.lgo  # noqa: B018


def test_a_program_that_does_not_finish_its_run_reports_its_summary() -> None:
    program = "import trainyard.wandb as w; w.init(); w.log({'a': 1}, commit=False); w.summary['best'] = 2"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"event": "progress", "step": 0, "a": 1},
        {"event": "progress", "step": 0, "best": 2},
    ]


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


def test_server_away_ends_no_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
    wandb.log({"samples/../x": [wandb.Image(tmp_path / "a.jpg")], "loss": 1})
    wandb.log({"gone": wandb.Image(tmp_path / "missing.png")})
    (written,) = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
    assert written.relative_to(tmp_path / "job").as_posix() == "images/samples_.._x_0/0.jpg"
    output = capsys.readouterr()
    assert json.loads(output.out) == {"event": "progress", "step": 0, "loss": 1}
    assert "The image gone is not written" in output.err
