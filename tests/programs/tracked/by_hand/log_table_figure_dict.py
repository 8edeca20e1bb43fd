"""Artifacts of every kind, listed and downloaded again by the program that logged them."""

import os

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import mlflow
import numpy as np
import pandas as pd

mlflow.set_experiment("artifacts")

with mlflow.start_run() as run:
    # Tables: the second call appends to the first.
    mlflow.log_table(
        data={"inputs": ["What is MLflow?", "What is Databricks?"], "toxicity": [0.0, 0.1]}, artifact_file="qa.json"
    )
    mlflow.log_table(data=pd.DataFrame({"inputs": ["What is Spark?"], "toxicity": [0.2]}), artifact_file="qa.json")

    fig, ax = plt.subplots()
    ax.plot([0, 1, 2, 3], [2, 3, 5, 7])
    mlflow.log_figure(fig, "figures/line.png")

    mlflow.log_dict({"k": "v", "list": [1, 2, 3]}, "data.json")
    mlflow.log_dict({"k": "v"}, "config/data.yml")
    mlflow.log_text("text1", "notes/file1.txt")
    mlflow.log_text("<h1>header</h1>", "index.html")

    image = np.zeros((20, 30, 3), dtype=np.uint8)
    image[:, :15] = [255, 128, 0]
    mlflow.log_image(image, "images/image.png")
    for step in range(2):
        mlflow.log_image(image, key="dogs", step=step)

    os.makedirs("data/states", exist_ok=True)
    with open("data/data.json", "w") as f:
        f.write('{"state": "TX", "Available": 25}')
    with open("data/states/features of TX.txt", "w") as f:
        f.write("rooms, zipcode, median_price, school_rating, transport")
    mlflow.log_artifacts("data", artifact_path="states")
    mlflow.log_artifact("data/data.json")

    for file in mlflow.artifacts.list_artifacts(run_id=run.info.run_id, artifact_path="states"):
        print(file.path, file.is_dir, file.file_size)

local = mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="states", dst_path="downloaded")
print(sorted(os.listdir(local)))
print(mlflow.artifacts.load_text(run.info.artifact_uri + "/notes/file1.txt"))
print(mlflow.artifacts.load_dict(f"runs:/{run.info.run_id}/data.json"))
print(mlflow.load_table("qa.json", run_ids=[run.info.run_id]))
