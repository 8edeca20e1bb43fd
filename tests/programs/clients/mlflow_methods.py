"""A call of each public method of MlflowClient, by a program with the token of its run. Prints a line of JSON for each:
the method, and "" where it works, else the message of its refusal."""

import inspect
import io
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
os.environ["MLFLOW_ENABLE_ASYNC_TRACE_LOGGING"] = "false"

import matplotlib

matplotlib.use("Agg")

import mlflow
import numpy as np
from matplotlib import pyplot
from mlflow import MlflowClient
from mlflow.entities import DatasetInput, InputTag, LoggedModelInput, LoggedModelOutput, Metric, Param, RunTag

client = MlflowClient()
scratch = Path(tempfile.mkdtemp())
(scratch / "directory").mkdir()
(scratch / "directory" / "file.txt").write_text("text")
file = scratch / "directory" / "file.txt"

run_id = os.environ["MLFLOW_RUN_ID"]
experiment_id = client.get_run(run_id).info.experiment_id
further: dict[str, str] = {}
model: dict[str, str] = {}
PAST, DIGITS, SECRET = 1_700_000_000_000, "digits", "https://example.com/hook"
MODEL, PROMPT, TRACE, SERVER = "digits-model", "greeting", "tr-" + 32 * "0", "io.example/tools"
SERVER_JSON = {"name": SERVER, "version": "1.0.0", "description": "tools"}


def create_run() -> None:
    """Create two runs: the first is the job's own."""
    client.create_run(experiment_id)
    further["run"] = client.create_run(experiment_id, run_name="further").info.run_id


def create_logged_model() -> None:
    model["id"] = client.create_logged_model(experiment_id, name=DIGITS, source_run_id=run_id).model_id


def dataset() -> DatasetInput:
    given = mlflow.data.from_numpy(np.zeros((2, 2)), name="zeros")
    return DatasetInput(given._to_mlflow_entity(), [InputTag("mlflow.data.context", "training")])


def traced(what: str) -> None:
    """Make a trace of two spans, and get it: the client only warns where a trace is refused."""
    root = client.start_trace("traced", experiment_id=experiment_id)
    span = client.start_span("inner", trace_id=root.trace_id, parent_id=root.span_id)
    client.end_span(root.trace_id, span.span_id)
    client.end_trace(root.trace_id)
    client.get_trace(root.trace_id, display=False)


def figure() -> Any:
    drawn, axes = pyplot.subplots()
    axes.plot([1, 2])
    return drawn


C = client
CALLS: dict[str, Callable[[], Any]] = {
    # Experiments.
    "create_experiment": lambda: C.create_experiment("methods"),
    "get_experiment": lambda: C.get_experiment(experiment_id),
    "get_experiment_by_name": lambda: C.get_experiment_by_name("methods"),
    "search_experiments": lambda: C.search_experiments(filter_string="name LIKE '%'", order_by=["name"]),
    "set_experiment_tag": lambda: C.set_experiment_tag(experiment_id, "team", "research"),
    "delete_experiment_tag": lambda: C.delete_experiment_tag(experiment_id, "team"),
    "rename_experiment": lambda: C.rename_experiment(experiment_id, "renamed"),
    # Runs.
    "create_run": create_run,
    "get_run": lambda: C.get_run(run_id),
    "get_parent_run": lambda: C.get_parent_run(run_id),
    "update_run": lambda: C.update_run(further["run"], status="RUNNING", name="renamed"),
    "search_runs": lambda: C.search_runs([experiment_id], "metrics.loss < 1", order_by=["metrics.loss DESC"]),
    "log_metric": lambda: C.log_metric(run_id, "loss", 0.5, PAST, 1),
    "log_param": lambda: C.log_param(run_id, "lr", 0.1),
    "log_batch": lambda: C.log_batch(
        run_id, [Metric("loss", 0.4, PAST, 2)], [Param("layers", "2")], [RunTag("stage", "first")]
    ),
    "get_metric_history": lambda: C.get_metric_history(run_id, "loss"),
    "set_tag": lambda: C.set_tag(run_id, "team", "research"),
    "delete_tag": lambda: C.delete_tag(run_id, "team"),
    "log_inputs": lambda: C.log_inputs(run_id, [dataset()], [LoggedModelInput(model["id"])] if model else None),
    "set_terminated": lambda: C.set_terminated(further["run"], "FINISHED"),
    "delete_run": lambda: C.delete_run(further["run"]),
    "restore_run": lambda: C.restore_run(further["run"]),
    # Artifacts.
    "log_artifact": lambda: C.log_artifact(run_id, str(file)),
    "log_artifacts": lambda: C.log_artifacts(run_id, str(scratch / "directory"), "copies"),
    "log_dict": lambda: C.log_dict(run_id, {"a": 1}, "dict.json"),
    "log_figure": lambda: C.log_figure(run_id, figure(), "figure.png"),
    "log_image": lambda: C.log_image(run_id, np.zeros((4, 4, 3), "uint8"), "image.png"),
    "log_stream": lambda: C.log_stream(run_id, io.BytesIO(b"text"), "stream.txt"),
    "log_table": lambda: C.log_table(run_id, {"a": [1]}, "table.json"),
    "log_text": lambda: C.log_text(run_id, "text", "text.txt"),
    "list_artifacts": lambda: C.list_artifacts(run_id),
    "download_artifacts": lambda: C.download_artifacts(run_id, "text.txt", str(scratch)),
    "load_table": lambda: C.load_table(experiment_id, "table.json", [run_id]),
    # Logged models.
    "create_logged_model": create_logged_model,
    "log_model_artifact": lambda: C.log_model_artifact(model["id"], str(file)),
    "log_model_artifacts": lambda: C.log_model_artifacts(model["id"], str(scratch / "directory"), "copies"),
    "log_model_params": lambda: C.log_model_params(model["id"], {"epoch": "1"}),
    "list_logged_model_artifacts": lambda: C.list_logged_model_artifacts(model["id"]),
    "log_outputs": lambda: C.log_outputs(run_id, [LoggedModelOutput(model["id"], 0)]),
    "get_logged_model": lambda: C.get_logged_model(model["id"]),
    "finalize_logged_model": lambda: C.finalize_logged_model(model["id"], "READY"),
    "search_logged_models": lambda: C.search_logged_models([experiment_id], f"name = '{DIGITS}'"),
    "set_logged_model_tags": lambda: C.set_logged_model_tags(model["id"], {"stage": "first"}),
    "delete_logged_model_tag": lambda: C.delete_logged_model_tag(model["id"], "stage"),
    # The registry of models.
    "create_registered_model": lambda: C.create_registered_model(MODEL),
    "get_registered_model": lambda: C.get_registered_model(MODEL),
    "search_registered_models": lambda: C.search_registered_models(),
    "update_registered_model": lambda: C.update_registered_model(MODEL, "a description"),
    "rename_registered_model": lambda: C.rename_registered_model(MODEL, "renamed"),
    "set_registered_model_tag": lambda: C.set_registered_model_tag(MODEL, "a", "b"),
    "delete_registered_model_tag": lambda: C.delete_registered_model_tag(MODEL, "a"),
    "set_registered_model_alias": lambda: C.set_registered_model_alias(MODEL, "champion", "1"),
    "delete_registered_model_alias": lambda: C.delete_registered_model_alias(MODEL, "champion"),
    "get_latest_versions": lambda: C.get_latest_versions(MODEL),
    "create_model_version": lambda: C.create_model_version(MODEL, f"runs:/{run_id}/{DIGITS}", await_creation_for=0),
    "copy_model_version": lambda: C.copy_model_version(f"models:/{MODEL}/1", "copied"),
    "get_model_version": lambda: C.get_model_version(MODEL, "1"),
    "get_model_version_by_alias": lambda: C.get_model_version_by_alias(MODEL, "champion"),
    "get_model_version_download_uri": lambda: C.get_model_version_download_uri(MODEL, "1"),
    "get_model_version_stages": lambda: C.get_model_version_stages(MODEL, "1"),
    "search_model_versions": lambda: C.search_model_versions(),
    "update_model_version": lambda: C.update_model_version(MODEL, "1", "a description"),
    "set_model_version_tag": lambda: C.set_model_version_tag(MODEL, "1", "a", "b"),
    "delete_model_version_tag": lambda: C.delete_model_version_tag(MODEL, "1", "a"),
    "transition_model_version_stage": lambda: C.transition_model_version_stage(MODEL, "1", "Production"),
    "delete_model_version": lambda: C.delete_model_version(MODEL, "1"),
    "delete_registered_model": lambda: C.delete_registered_model(MODEL),
    # Prompts.
    "register_prompt": lambda: C.register_prompt(PROMPT, "Greet {{name}}."),
    "create_prompt": lambda: C.create_prompt(PROMPT),
    "create_prompt_version": lambda: C.create_prompt_version(PROMPT, "Greet {{name}}."),
    "get_prompt": lambda: C.get_prompt(PROMPT),
    "get_prompt_version": lambda: C.get_prompt_version(PROMPT, 1),
    "get_prompt_version_by_alias": lambda: C.get_prompt_version_by_alias(PROMPT, "best"),
    "load_prompt": lambda: C.load_prompt(PROMPT, version=1),
    "search_prompts": lambda: C.search_prompts(),
    "search_prompt_versions": lambda: C.search_prompt_versions(PROMPT),
    "parse_prompt_uri": lambda: C.parse_prompt_uri(f"prompts:/{PROMPT}/1"),
    "set_prompt_alias": lambda: C.set_prompt_alias(PROMPT, "best", 1),
    "delete_prompt_alias": lambda: C.delete_prompt_alias(PROMPT, "best"),
    "set_prompt_tag": lambda: C.set_prompt_tag(PROMPT, "a", "b"),
    "delete_prompt_tag": lambda: C.delete_prompt_tag(PROMPT, "a"),
    "set_prompt_version_tag": lambda: C.set_prompt_version_tag(PROMPT, 1, "a", "b"),
    "delete_prompt_version_tag": lambda: C.delete_prompt_version_tag(PROMPT, 1, "a"),
    "link_prompt_version_to_run": lambda: C.link_prompt_version_to_run(run_id, f"prompts:/{PROMPT}/1"),
    "link_prompt_version_to_model": lambda: C.link_prompt_version_to_model(PROMPT, "1", model["id"]),
    "link_prompt_versions_to_trace": lambda: C.link_prompt_versions_to_trace(
        [C.get_prompt_version(PROMPT, 1)], TRACE  # type: ignore[list-item]
    ),
    "detach_prompt_from_run": lambda: C.detach_prompt_from_run(run_id, f"prompts:/{PROMPT}/1"),
    "list_logged_prompts": lambda: C.list_logged_prompts(run_id),
    "delete_prompt_version": lambda: C.delete_prompt_version(PROMPT, "1"),
    "delete_prompt": lambda: C.delete_prompt(PROMPT),
    # Traces.
    "start_trace": lambda: traced("start_trace"),
    "start_span": lambda: traced("start_span"),
    "end_span": lambda: traced("end_span"),
    "end_trace": lambda: traced("end_trace"),
    "get_trace": lambda: C.get_trace(TRACE, display=False),
    "search_traces": lambda: C.search_traces([experiment_id]),
    "set_trace_tag": lambda: C.set_trace_tag(TRACE, "a", "b"),
    "delete_trace_tag": lambda: C.delete_trace_tag(TRACE, "a"),
    "link_traces_to_run": lambda: C.link_traces_to_run([TRACE], run_id),
    "unlink_traces_from_run": lambda: C.unlink_traces_from_run([TRACE], run_id),
    "delete_traces": lambda: C.delete_traces(experiment_id, trace_ids=[TRACE]),
    # Evaluation data sets.
    "create_dataset": lambda: C.create_dataset("questions", experiment_id),
    "get_dataset": lambda: C.get_dataset("d-1"),
    "search_datasets": lambda: C.search_datasets([experiment_id]),
    "set_dataset_tags": lambda: C.set_dataset_tags("d-1", {"a": "b"}),
    "delete_dataset_tag": lambda: C.delete_dataset_tag("d-1", "a"),
    "add_dataset_to_experiments": lambda: C.add_dataset_to_experiments("d-1", [experiment_id]),
    "remove_dataset_from_experiments": lambda: C.remove_dataset_from_experiments("d-1", [experiment_id]),
    "delete_dataset": lambda: C.delete_dataset("d-1"),
    # Webhooks.
    "create_webhook": lambda: C.create_webhook("hook", SECRET, ["registered_model.created"]),
    "get_webhook": lambda: C.get_webhook("w-1"),
    "list_webhooks": lambda: C.list_webhooks(),
    "update_webhook": lambda: C.update_webhook("w-1", name="renamed"),
    "test_webhook": lambda: C.test_webhook("w-1"),
    "delete_webhook": lambda: C.delete_webhook("w-1"),
    # Workspaces.
    "create_workspace": lambda: C.create_workspace("space"),
    "get_workspace": lambda: C.get_workspace("default"),
    "get_workspace_store_uri": lambda: C.get_workspace_store_uri(),
    "list_workspaces": lambda: C.list_workspaces(),
    "update_workspace": lambda: C.update_workspace("space", "a description"),
    "delete_workspace": lambda: C.delete_workspace("space"),
    # The registry of MCP servers.
    "create_mcp_server": lambda: C.create_mcp_server(SERVER),
    "get_mcp_server": lambda: C.get_mcp_server(SERVER),
    "search_mcp_servers": lambda: C.search_mcp_servers(),
    "update_mcp_server": lambda: C.update_mcp_server(SERVER, description="tools"),
    "set_mcp_server_tag": lambda: C.set_mcp_server_tag(SERVER, "a", "b"),
    "delete_mcp_server_tag": lambda: C.delete_mcp_server_tag(SERVER, "a"),
    "set_mcp_server_alias": lambda: C.set_mcp_server_alias(SERVER, "best", "1.0.0"),
    "delete_mcp_server_alias": lambda: C.delete_mcp_server_alias(SERVER, "best"),
    "create_mcp_server_version": lambda: C.create_mcp_server_version(SERVER_JSON),
    "get_mcp_server_version": lambda: C.get_mcp_server_version(SERVER, "1.0.0"),
    "get_mcp_server_version_by_alias": lambda: C.get_mcp_server_version_by_alias(SERVER, "best"),
    "get_latest_mcp_server_version": lambda: C.get_latest_mcp_server_version(SERVER),
    "search_mcp_server_versions": lambda: C.search_mcp_server_versions(SERVER),
    "update_mcp_server_version": lambda: C.update_mcp_server_version(SERVER, "1.0.0", status="active"),
    "refresh_mcp_server_version_tools": lambda: C.refresh_mcp_server_version_tools(SERVER, "1.0.0"),
    "set_mcp_server_version_tag": lambda: C.set_mcp_server_version_tag(SERVER, "1.0.0", "a", "b"),
    "delete_mcp_server_version_tag": lambda: C.delete_mcp_server_version_tag(SERVER, "1.0.0", "a"),
    "create_mcp_access_endpoint": lambda: C.create_mcp_access_endpoint(SERVER, SECRET, server_version="1.0.0"),
    "get_mcp_access_endpoint": lambda: C.get_mcp_access_endpoint(SERVER, "1"),
    "search_mcp_access_endpoints": lambda: C.search_mcp_access_endpoints(),
    "update_mcp_access_endpoint": lambda: C.update_mcp_access_endpoint(SERVER, "1", url=SECRET),
    "delete_mcp_access_endpoint": lambda: C.delete_mcp_access_endpoint(SERVER, "1"),
    "delete_mcp_server_version": lambda: C.delete_mcp_server_version(SERVER, "1.0.0"),
    "delete_mcp_server": lambda: C.delete_mcp_server(SERVER),
    # Last, since they remove what the others use.
    "delete_logged_model": lambda: C.delete_logged_model(model["id"]),
    "delete_experiment": lambda: C.delete_experiment(experiment_id),
    "restore_experiment": lambda: C.restore_experiment(experiment_id),
}


def refusal(call: Callable[[], Any]) -> str:
    """The message of the call's exception; "" of a call that returns."""
    try:
        call()
    except Exception as error:
        return re.sub(r"\s+", " ", str(error) if str(error) else type(error).__name__)
    return ""


public = {name for name, _ in inspect.getmembers(MlflowClient, inspect.isfunction) if not name.startswith("_")}
for name in sorted(public - CALLS.keys()):
    print(json.dumps({"method": name, "refusal": "no row in CALLS"}), flush=True)
for name, call in CALLS.items():
    print(json.dumps({"method": name, "refusal": refusal(call)}), flush=True)
