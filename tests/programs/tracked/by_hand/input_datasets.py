"""Data sets of a run, with their sources and contexts."""

import mlflow
import numpy as np
import pandas as pd

mlflow.set_experiment("datasets")

rng = np.random.default_rng(0)
frame = pd.DataFrame(rng.normal(size=(50, 3)).round(6), columns=["alcohol", "ph", "sulphates"])
frame["quality"] = (frame.sum(axis=1) > 0).astype(int)
frame.to_csv("wine.csv", index=False)

train = mlflow.data.from_pandas(frame[:40], source="wine.csv", name="wine quality - train", targets="quality")
test = mlflow.data.from_pandas(frame[40:], source="wine.csv", name="wine quality - test", targets="quality")

with mlflow.start_run():
    mlflow.log_input(train, context="training")
    mlflow.log_input(test, context="testing", tags={"split": "last ten"})
    mlflow.log_input(mlflow.data.from_numpy(frame.to_numpy()[:5], name="head"))
    mlflow.log_metric("rows", len(frame))

run = mlflow.last_active_run()
for dataset_input in run.inputs.dataset_inputs:
    print(dataset_input.dataset.name, dataset_input.dataset.digest, dataset_input.dataset.source_type)
source = mlflow.data.get_source(run.inputs.dataset_inputs[0])
print(source.to_dict())
