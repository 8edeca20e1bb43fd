"""MLflow's measurements of the machine, beside the program's own metrics."""

import time

import mlflow

mlflow.enable_system_metrics_logging()
mlflow.set_system_metrics_sampling_interval(0.5)
mlflow.set_system_metrics_samples_before_logging(1)

with mlflow.start_run() as run:
    for step in range(4):
        mlflow.log_metric("progress", step / 4, step=step)
        time.sleep(1)

print(sorted(mlflow.MlflowClient().get_run(run.info.run_id).data.metrics))
