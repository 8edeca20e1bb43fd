"""A task of Airflow that trains, as a DAG has it: the package is on gs://, and the operator waits for the end."""

import sys
from typing import Any

from airflow.providers.google.cloud.operators.mlengine import MLEngineStartTrainingJobOperator
from google.cloud import storage


class Run:
    """The part of a run that the operator uses; it is not in a database here."""

    def xcom_push(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""


bucket = storage.Client().bucket("airflow")
bucket.blob("trainer-1.tar.gz").upload_from_filename(sys.argv[1])
task = MLEngineStartTrainingJobOperator(
    task_id="train",
    project_id="local",
    region="us-central1",
    job_id="by_airflow",
    package_uris=["gs://airflow/trainer-1.tar.gz"],
    training_python_module="trainer.task",
    training_args=["--epochs", "1"],
    scale_tier="BASIC",
    deferrable=False,
)
run = Run()
task.execute({"ti": run, "task_instance": run, "task": task})
