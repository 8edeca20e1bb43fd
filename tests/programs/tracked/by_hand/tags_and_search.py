"""Runs with tags, found again by filters and orders: the best one of a sweep."""

import mlflow
from mlflow import MlflowClient

experiment = mlflow.set_experiment("search-guide")

with mlflow.start_run(run_name="search"):
    mlflow.set_tag("mlflow.note.content", "A sweep over **x**.")
    for i in range(6):
        with mlflow.start_run(run_name=f"trial-{i}", nested=True):
            mlflow.log_param("y", "a" if i % 2 == 0 else "b")
            mlflow.log_param("trial", i)
            for step in range(3):
                mlflow.log_metric("x", i * 0.2 + step * 0.01, step=step)
            mlflow.set_tags({"release.version": "2.2.0", "priority": i})
            if i == 3:
                mlflow.set_tag("temporary", "to be removed")
                mlflow.delete_tag("temporary")

good = mlflow.search_runs(filter_string="metrics.x > 0.5 and params.y = 'a'", order_by=["metrics.x DESC"])
print(good[["params.trial", "metrics.x", "tags.mlflow.runName"]])
assert list(good["tags.mlflow.runName"]) == ["trial-4"]

best_run = mlflow.search_runs(
    experiment_ids=[experiment.experiment_id], order_by=["metrics.x DESC"], max_results=1
).iloc[0]
print("best run:", best_run["tags.mlflow.runName"], best_run["metrics.x"])
assert best_run["tags.mlflow.runName"] == "trial-5"

client = MlflowClient()
tagged = client.search_runs(
    [experiment.experiment_id],
    filter_string="tags.`release.version` = '2.2.0' and attributes.status = 'FINISHED' and params.trial != '0'",
    order_by=["params.trial ASC"],
)
print([run.info.run_name for run in tagged])
assert [run.data.params["trial"] for run in tagged] == ["1", "2", "3", "4", "5"]

named = client.search_runs([experiment.experiment_id], filter_string="attributes.run_name LIKE 'trial-%'", max_results=4)
assert len(named) == 4
assert named.token
