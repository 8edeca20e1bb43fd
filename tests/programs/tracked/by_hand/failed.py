"""A program that raises in the middle of its run."""

import mlflow

mlflow.set_experiment("unlucky")

with mlflow.start_run():
    mlflow.log_params({"lr": 0.1, "layers": 2})
    for step in range(6):
        loss = 2.0**step
        mlflow.log_metric("loss", loss, step=step)
        if loss > 10:
            raise RuntimeError(f"the loss diverges: {loss}")
