"""A run that ends, and goes on later by its id."""

import mlflow

mlflow.set_experiment("resumable")

with mlflow.start_run(run_name="resumed") as run:
    mlflow.log_param("batch_size", 32)
    for step in range(5):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)

run_id = run.info.run_id
print("after the first part:", mlflow.get_run(run_id).info.status)

with mlflow.start_run(run_id=run_id):
    mlflow.log_param("batch_size", 32)
    for step in range(5, 10):
        mlflow.log_metrics({"loss": 1 / (step + 1), "val_loss": 2 / (step + 1)}, step=step)
    mlflow.log_text("resumed at step 5", "resumed.txt")

client = mlflow.MlflowClient()
print([(point.step, point.value) for point in client.get_metric_history(run_id, "loss")])
