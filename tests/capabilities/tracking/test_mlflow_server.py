"""Programs of MLflow (tests/programs/tracked), unchanged, against MLflow's own server and against ours: the same is
read from both, but for DIFFERENCES. docs/reference/mlflow.md has the same list."""

import json
import math
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from beds.waiting import until
from e2e.harness import REPOSITORY, Service, started
from e2e.programs.test_programs import PROGRAMS
from support.addresses import free_ports
from trainyard_protocol.answers.metrics import number

TRACKED = PROGRAMS / "tracked"
READER = PROGRAMS / "clients" / "read_mlflow.py"
PAGE = REPOSITORY / "docs" / "reference" / "mlflow.md"
TIMEOUT_S = 900

pytestmark = [pytest.mark.e2e, pytest.mark.frameworks]

Read = dict[str, Any]
"""The JSON of read_mlflow.py."""

UNNAMED, PRESENT = "<random>", "<time>"
"""Stand-ins for a name that MLflow has invented, and for a time since the program began."""

Facts = dict[str, Any]
"""A value for each thing that a server has, such as `first/lr_0.1 metric loss`."""


class Ended(NamedTuple):
    """The way a program ends: the exit status of its process, and the state of its job. Where its arithmetic depends on
    the number of threads, values are equal within the tolerance."""

    status: int = 0
    state: str = "SUCCEEDED"
    tolerance: float = 0


ENDS = {
    "sklearn_autolog": Ended(),
    "sklearn_grid_search": Ended(),
    "xgboost_autolog": Ended(),
    "lightgbm_autolog": Ended(),
    "keras_autolog": Ended(tolerance=1e-5),
    "lightning_autolog": Ended(tolerance=1e-5),
    "lightning_logger": Ended(tolerance=1e-5),
    "pytorch_checkpoints": Ended(tolerance=1e-5),
    "hf_trainer": Ended(tolerance=1e-5),
    "nested_runs": Ended(),
    "log_model": Ended(),
    "log_table_figure_dict": Ended(),
    "resumed_run": Ended(),
    "backfilled_runs": Ended(),
    "system_metrics": Ended(),
    "failed": Ended(1, "FAILED"),
    "killed": Ended(-9, "FAILED"),
    "tags_and_search": Ended(),
    "input_datasets": Ended(),
}


def unchanged(facts: Facts, job: str, other: Facts) -> Facts:
    return facts


class Difference(NamedTuple):
    """A sentence of the page, with the changes that make the facts of both servers equal: of MLflow's, and of ours.
    Each gets the facts, the program, and the facts of the other server."""

    words: str
    theirs: Callable[[Facts, str, Facts], Facts] = unchanged
    ours: Callable[[Facts, str, Facts], Facts] = unchanged


def in_the_project(facts: Facts, job: str, other: Facts) -> Facts:
    project = other["first experiment"]
    return {key: project if key.endswith(" experiment") else value for key, value in facts.items()}


def named_like_the_job(facts: Facts, job: str, other: Facts) -> Facts:
    return facts | {"first name": job if facts["first name"] == UNNAMED else facts["first name"]}


def timed_like_the_job(facts: Facts, job: str, other: Facts) -> Facts:
    status = "FAILED" if ENDS[job].state == "FAILED" else "FINISHED"
    return facts | {"first start time": PRESENT, "first end time": PRESENT, "first status": status}


def ended_with_the_job(facts: Facts, job: str, other: Facts) -> Facts:
    runs = [key.removesuffix(" status") for key, value in facts.items() if key.endswith(" status")]
    runs = [run for run in runs if facts[f"{run} status"] == "RUNNING"]
    status = "FAILED" if ENDS[job].state == "FAILED" else "FINISHED"
    return facts | {f"{run} status": status for run in runs} | {f"{run} end time": PRESENT for run in runs}


def source_of_the_job(facts: Facts, job: str, other: Facts) -> Facts:
    return {
        key: value for key, value in facts.items() if key in other or not key.startswith("first tag mlflow.source.")
    }


def users_of_all(facts: Facts, job: str, other: Facts) -> Facts:
    runs = [key.removesuffix(" status") for key in facts if key.endswith(" status") and " model " not in key]
    return facts | {f"{run} tag mlflow.user": "" for run in runs}


def without_files_of_others(facts: Facts, job: str, other: Facts) -> Facts:
    """The facts without those files of the job's own run that are below directories of models and further runs."""
    others = {facts[key] for key in facts if key.endswith(" name") and not key.startswith("first name")} | {"models"}
    below = re.compile(rf"first (file|directory) ({'|'.join(map(re.escape, others))})(/.*)?")
    return {key: value for key, value in facts.items() if not below.fullmatch(key)}


def without_metrics_of_the_log(facts: Facts, job: str, other: Facts) -> Facts:
    names = BESIDE.get(job, ())
    left_out = {f"first {kind} {name}" for name in names for kind in ("metric", "latest")}
    assert left_out <= facts.keys()
    return {key: value for key, value in facts.items() if key not in left_out}


def without_traces_of_loading(facts: Facts, job: str, other: Facts) -> Facts:
    return {key: value for key, value in facts.items() if not key.endswith(" file registered_model_meta")}


BESIDE = {"sklearn_autolog": {"test_accuracy", "test_f1"}, "pytorch_checkpoints": {"lr"}}
"""The metrics that programs print or write into event files, and do not log."""

DIFFERENCES = (
    Difference("The experiment is the job's project, whatever name the program asks for.", in_the_project),
    Difference(
        "The first run of a program is the job's own. It has the job's name where the program gives none.",
        named_like_the_job,
    ),
    Difference(
        "The job's own run begins and ends with the job, whatever times the program gives, and has its status.",
        timed_like_the_job,
    ),
    Difference(
        "A run that is open when its job ends has the job's status and end. MLflow's server leaves it RUNNING.",
        ended_with_the_job,
    ),
    Difference(
        "Metrics that a program prints or writes for TensorBoard, and does not log, are of the job's own run too.",
        ours=without_metrics_of_the_log,
    ),
    Difference(
        "The job's own run has no tags `mlflow.source.*`, as a run that is resumed gets none: the job says what was "
        "submitted.",
        source_of_the_job,
    ),
    Difference("Every run has the tag `mlflow.user`, also those of `MlflowClient.create_run`.", users_of_all),
    Difference(
        "The artifacts of the job's own run are listed with those of its further runs and of its models below them.",
        ours=without_files_of_others,
    ),
    Difference(
        "A program that loads a model of its own job leaves the file `registered_model_meta` beside it: it loads from "
        "where it has saved.",
        ours=without_traces_of_loading,
    ),
)


def without_differences(ours: Facts, theirs: Facts, program: str) -> tuple[Facts, Facts]:
    for difference in DIFFERENCES:
        ours, theirs = difference.ours(ours, program, theirs), difference.theirs(theirs, program, ours)
    return ours, theirs


@pytest.fixture(scope="module")
def service(frameworks_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("tracked")
    settings = root / "server.toml"
    settings.write_text("retries = 0\n")  # a program that is killed would run again, into the same runs
    yield from started(root, "--python", str(frameworks_python), "--server-settings", str(settings))


@pytest.mark.parametrize("program", ENDS)
def test_a_program_leaves_the_same_on_both_servers(
    service: Service, frameworks_python: Path, program: str, tmp_path: Path
) -> None:
    began = now_ms()
    ours = submitted(service, frameworks_python, program)
    with mlflow_server(frameworks_python, tmp_path / "server") as url:
        status = executed(frameworks_python, program, url, tmp_path / "work")
        theirs = read(frameworks_python, {"MLFLOW_TRACKING_URI": url})
    assert status == ENDS[program].status
    facts = (facts_of(ours, began, ours["own"]), facts_of(theirs, began, first_of(theirs)))
    check_same(*without_differences(*facts, program), ENDS[program].tolerance)


def test_page_lists_the_differences() -> None:
    (listed,) = re.findall(r"<!-- differences -->\n(.*?)<!-- /differences -->", PAGE.read_text(), re.DOTALL)
    items = [" ".join(item.split()) for item in re.split(r"^- ", listed, flags=re.MULTILINE) if item.strip()]
    assert items == [difference.words for difference in DIFFERENCES]


# Executions.


@contextmanager
def mlflow_server(python: Path, directory: Path) -> Iterator[str]:
    """MLflow's own server with nothing on it; its URL."""
    directory.mkdir()
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    words = [str(python), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = ["--backend-store-uri", f"sqlite:///{directory}/mlflow.db"]
    stores += ["--artifacts-destination", str(directory / "artifacts")]
    log = directory / "log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [*words, *stores],
            cwd=directory,
            env=plain_environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),  # eight processes, for traces
            stdout=stream,
            stderr=stream,
        )
    try:
        until(lambda: is_up(url) or server.poll() is not None, lambda: log.read_text()[-5000:])
        assert server.poll() is None, log.read_text()[-5000:]
        yield url
    finally:
        server.terminate()
        server.wait(60)


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def plain_environment(**variables: str) -> dict[str, str]:
    return {key: os.environ[key] for key in ("HOME", "PATH")} | variables


def file_of(program: str) -> Path:
    (file,) = TRACKED.rglob(f"{program}.py")
    return file


def executed(python: Path, program: str, url: str, directory: Path) -> int:
    """The exit status of the program as a process, with nothing of ours about it."""
    directory.mkdir()
    return subprocess.run(
        [str(python), str(file_of(program))],
        cwd=directory,
        env=plain_environment(MLFLOW_TRACKING_URI=url),
        timeout=TIMEOUT_S,
        check=False,
    ).returncode


def submitted(service: Service, python: Path, program: str) -> Read:
    """All that the job of the program has left."""
    service.ok("jobs", "submit", "training", program, "--package-path", str(file_of(program)))
    state = service.wait_for(program, "SUCCEEDED", "FAILED", timeout=TIMEOUT_S)
    assert state == ENDS[program].state, service.log(program)
    with service.client() as client:
        server = client.server
    return read(python, {"MLFLOW_TRACKING_URI": server.url, "MLFLOW_TRACKING_TOKEN": server.token}, "--newest-job")


def read(python: Path, variables: dict[str, str], *words: str) -> Read:
    done = subprocess.run(
        [str(python), str(READER), *words],
        env=plain_environment(**variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found: Read = json.loads(done.stdout)
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# Facts: what two executions of a program have in common.

RANDOM_NAME = re.compile(r"[a-z]+-[a-z]+-\d+|run(-\d+)?")
PLACES = (
    (re.compile(r"mlflow-artifacts:/[^\s\"']*"), "<artifacts>"),
    (re.compile(r"^artifact_path: .*"), "artifact_path: <artifacts>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
    (re.compile(r"(utc_time_created: ).*"), r"\1<time>"),
    (re.compile(r"(model_size_bytes: ).*"), r"\1<size>"),  # of the path of a pickled class, for one
    (re.compile(r"(events\.out\.tfevents)\.\d+\..*\.\d+\.(\d+)(\.v2)?"), r"\1.\2"),
    (re.compile(r"^(\d+\.\d+(e-\d+)?,){4}", re.MULTILINE), "<times>,"),
    (re.compile(r"(timestamp\+)\d{13}\+[0-9a-f-]{36}"), r"\1<time>+<uuid>"),
)
"""Texts that no two executions have in common."""

MEASURED = re.compile(r"system/.*|(train|eval)_(runtime|samples_per_second|steps_per_second)|(mean|std)_\w+_time")
"""Metrics whose values are of the machine."""

VARYING = re.compile(r".*(estimator\.html|(latest_checkpoint|model)\.pth)")
"""Files with measured times, or with paths of the program and its directory. Of these only the names count."""


def first_of(found: Read) -> str:
    """The id of the run that a job would have as its own."""
    runs = sorted(found["runs"], key=lambda run: run["start"])
    return str(next(run["id"] for run in runs if not run["parent"]))


def facts_of(found: Read, began: int, first: str) -> Facts:
    """Everything that was read, without ids, without times since `began`, without names that MLflow has invented. The
    run with the id `first` is called so."""
    labels = labels_of(found, first)
    facts: Facts = {}
    for run in found["runs"]:
        label = labels[run["id"]]
        facts |= {f"{label} {key}": value for key, value in facts_of_run(run, labels, began).items()}
        facts[f"{label} experiment"] = found["experiments"][run["experiment"]]
    for model in found["models"]:
        label = labels[model["id"]]
        facts |= {f"{label} {key}": value for key, value in facts_of_model(model, labels).items()}
    words = {thing["uri"]: "<artifacts>" for thing in (*found["models"], *found["runs"])}
    words |= dict.fromkeys(sorted(labels, key=len, reverse=True), "<id>")
    return {without_ids(key, words): without_ids(value, words) for key, value in facts.items()}


def labels_of(found: Read, first: str) -> dict[str, str]:
    """A label for each run and model. That of a run has those of its parents before it."""
    labels: dict[str, str] = {}
    runs = sorted(found["runs"], key=lambda run: (run["start"], run["id"]))

    def label(parent: str | None, prefix: str) -> None:
        children = [run for run in runs if run["parent"] == parent]
        nameless = sorted(
            (run for run in children if RANDOM_NAME.fullmatch(run["name"])),
            key=lambda run: json.dumps(run["params"], sort_keys=True),
        )
        for run in children:
            own = f"#{nameless.index(run)}" if run in nameless else run["name"]
            labels[run["id"]] = "first" if run["id"] == first else f"{prefix}{own}"
            label(run["id"], f"{labels[run['id']]}/")

    label(None, "")
    for model in sorted(found["models"], key=lambda model: (model["created"], model["id"])):
        wished = f"{labels[model['run']]} model {model['name']}"
        again = sum(other == wished or other.startswith(f"{wished} #") for other in labels.values())
        labels[model["id"]] = f"{wished} #{again}" if again else wished
    return labels


def facts_of_run(run: Any, labels: dict[str, str], began: int) -> Facts:
    facts = {"name": UNNAMED if RANDOM_NAME.fullmatch(run["name"]) else run["name"]}
    facts |= {key: run[key] for key in ("status", "lifecycle")}
    facts |= {f"{key} time": time_of(run[key], began) for key in ("start", "end")}
    facts |= {f"param {name}": value for name, value in run["params"].items()}
    facts |= {f"tag {name}": value for name, value in tags_of(run, labels).items()}
    for name, points in run["history"].items():
        if MEASURED.fullmatch(name):
            facts[f"metric {name}"] = "measured"
            continue
        in_order = sorted(points)
        facts[f"metric {name}"] = [[time_of(time_ms, began), step, shown(value)] for time_ms, step, value in in_order]
        facts[f"latest {name}"] = shown(run["latest"][name])
    for place, given in enumerate(
        sorted(run["inputs"], key=lambda given: json.dumps([given["name"], given["tags"]], sort_keys=True))
    ):
        facts |= {f"input {place} {key}": value for key, value in given.items()}
        if given["source_type"] == "code":  # which is the tags of the run
            facts |= {f"input {place} source": sorted(json.loads(given["source"]))}
    facts["models"] = sorted([labels[model_id], step] for model_id, step in run["model_outputs"])
    facts["used models"] = sorted(labels[model_id] for model_id in run["model_inputs"])
    return facts | facts_of_files(run["artifacts"])


def facts_of_model(model: Any, labels: dict[str, str]) -> Facts:
    facts = {key: model[key] for key in ("name", "status", "type")} | {"of": labels[model["run"]]}
    facts |= {f"param {name}": value for name, value in model["params"].items()}
    facts |= {f"tag {name}": value for name, value in tags_of(model, labels).items()}
    points = [
        [key, step, "measured" if MEASURED.fullmatch(key) else shown(value), labels[run], *data]
        for key, step, value, run, *data in model["metrics"]
    ]
    facts["metrics"] = sorted(points, key=json.dumps)
    return facts | facts_of_files(model["artifacts"])


def facts_of_files(files: Any) -> Facts:
    facts: Facts = {}
    for file in files:
        if file["is_dir"]:
            facts |= {f"directory {file['path']}": True} | facts_of_files(file["files"])
        elif file["path"] == "MLmodel":  # in which sets have no order
            facts |= {f"file {file['path']}": sorted(file["text"].splitlines())}
        elif VARYING.fullmatch(file["path"]):
            facts |= {f"file {file['path']}": "<varying>"}
        else:
            facts |= {f"file {file['path']}": file.get("text", file["size"])}
    return facts


def tags_of(thing: Any, labels: dict[str, str]) -> dict[str, str]:
    """The tags; of those that say who ran which program only the names count."""
    tags = {
        name: "" if re.fullmatch(r"mlflow\.(user|source\..*)", name) else value for name, value in thing["tags"].items()
    }
    tags.pop("mlflow.runName", None)  # which is the name
    if "mlflow.parentRunId" in tags:
        tags["mlflow.parentRunId"] = labels[tags["mlflow.parentRunId"]]
    return {name: value for name, value in tags.items() if not name.startswith("mlflow.source.git.")}


def time_of(time_ms: int | None, began: int) -> int | str | None:
    """A time that the program itself gives, as those of the past are; others differ."""
    return time_ms if time_ms is None or time_ms < began else PRESENT


def shown(value: float) -> float | str:
    return number(value)


def without_ids(value: Any, words: dict[str, str]) -> Any:
    if isinstance(value, str):
        for found, instead in words.items():
            value = value.replace(found, instead)
        for place, instead in PLACES:
            value = place.sub(instead, value)
    elif isinstance(value, list):
        value = [without_ids(part, words) for part in value]
    elif isinstance(value, dict):
        value = {without_ids(key, words): without_ids(part, words) for key, part in value.items()}
    return value


def check_same(ours: Facts, expected: Facts, tolerance: float = 0) -> None:
    keys = sorted({*ours, *expected})
    differing = [key for key in keys if not are_same(ours.get(key), expected.get(key), tolerance)]
    lines = [f"{key}:\n  ours   {ours.get(key)!r:.2000}\n  MLflow {expected.get(key)!r:.2000}" for key in differing]
    assert not lines, "\n".join([f"{len(lines)} facts differ", *lines])


def are_same(ours: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(ours, list) and isinstance(expected, list):
        parts = zip(ours, expected, strict=False)
        return len(ours) == len(expected) and all(are_same(*part, tolerance) for part in parts)
    if isinstance(ours, float) and isinstance(expected, float):
        return math.isclose(ours, expected, rel_tol=tolerance)
    return bool(ours == expected)
