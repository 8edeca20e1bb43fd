"""MLflow by hand, with an experiment, a nested run and an artifact."""

import argparse

import mlflow

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
arguments = parser.parse_args()

mlflow.set_experiment("digits")
with mlflow.start_run(run_name="baseline"):
    mlflow.log_params({"optimizer": "adam", "lr": arguments.lr})
    for step in range(20):
        mlflow.log_metrics({"loss": 1 / (step + 1), "val_accuracy": step / 20}, step=step)
    mlflow.log_text("a note", "notes/note.txt")
    with mlflow.start_run(run_name="fold", nested=True):
        mlflow.log_metric("auc", 0.75, step=1)
