"""Hyperparameter tuning jobs by Vertex AI's own client: `vertex_tuning_jobs.py PACKAGE [IMAGE]`, a package with the module
trainer.task and an image that has the program as t.py. Prints what it sees as JSON."""

import json
import os
import sys
from typing import Any

from google.api_core.exceptions import BadRequest, NotFound
from google.cloud import aiplatform, storage
from google.cloud.aiplatform import hyperparameter_tuning as space

EXECUTOR = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-15.py310:latest"
package, *images = sys.argv[1:]
aiplatform.init(
    project=os.environ["GOOGLE_CLOUD_PROJECT"],
    location="us-central1",
    staging_bucket="gs://vertex-tuning",
    api_transport="rest",
    api_endpoint=f"aiplatform.{os.environ['GOOGLE_CLOUD_UNIVERSE_DOMAIN']}",
)
storage.Client().create_bucket("vertex-tuning").blob("trainer-1.tar.gz").upload_from_filename(package)


def packaged(*args: str) -> aiplatform.CustomJob:
    program = {
        "executor_image_uri": EXECUTOR,
        "package_uris": ["gs://vertex-tuning/trainer-1.tar.gz"],
        "python_module": "trainer.task",
        "args": list(args),
    }
    pool = {"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1, "python_package_spec": program}
    return aiplatform.CustomJob(display_name="trial", worker_pool_specs=[pool])


def in_container(image: str) -> aiplatform.CustomJob:
    program = {"image_uri": image, "command": ["python3", "/t.py"]}
    pool = {"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1, "container_spec": program}
    return aiplatform.CustomJob(display_name="trial", worker_pool_specs=[pool])


def tuned(name: str, job: aiplatform.CustomJob, trials: int, **fields: Any) -> aiplatform.HyperparameterTuningJob:
    momentum = space.DoubleParameterSpec(min=0, max=1, scale="linear", parent_values=["sgd"])
    parameters = {
        "rate": space.DoubleParameterSpec(min=0.001, max=1, scale="log"),
        "layers": space.IntegerParameterSpec(min=0, max=2, scale="linear"),
        "batch": space.DiscreteParameterSpec(values=[16, 32], scale="linear"),
        "optimizer": space.CategoricalParameterSpec(
            values=["adam", "sgd"], conditional_parameter_spec={"momentum": momentum}
        ),
    }
    given: dict[str, Any] = {"metric_spec": {"accuracy": "maximize"}, "parameter_spec": parameters} | fields
    return aiplatform.HyperparameterTuningJob(
        display_name=name, custom_job=job, max_trial_count=trials, parallel_trial_count=2, labels={"team": "a"}, **given
    )


def shown(job: aiplatform.HyperparameterTuningJob) -> list[dict[str, Any]]:
    return [
        {
            "id": trial.id,
            "state": trial.state.name,
            "parameters": {one.parameter_id: one.value for one in trial.parameters},
            "step": trial.final_measurement.step_count,
            "metrics": {one.metric_id: one.value for one in trial.final_measurement.metrics},
            "custom_job": aiplatform.CustomJob.get(trial.custom_job).display_name,
        }
        for trial in job.trials
    ]


seen: dict[str, Any] = {"names": {}}
jobs = {"packaged": tuned("packaged", packaged("--epochs", "3"), 4)}  # the client asks for the best
jobs |= {"in an image": tuned("in an image", in_container(image), 2, measurement_selection="last") for image in images}
for name, job in jobs.items():
    job.run(sync=True)
    seen[name] = {"state": job.state.name, "trials": shown(job)}
    seen["names"][name] = job.name
failing = tuned("fails", packaged("--fail"), 5, max_failed_trial_count=1)
try:
    failing.run(sync=True)
except RuntimeError as error:
    seen["failed"] = str(error)
try:
    tuned("two", packaged(), 2, metric_spec={"accuracy": "maximize", "loss": "minimize"}).run(sync=True)
except BadRequest as error:
    seen["refused"] = error.message
waiting = tuned("waits", packaged("--wait"), 2)
waiting.run(sync=False)
waiting.wait_for_resource_creation()
waiting.cancel()
try:
    waiting.wait()
except RuntimeError as error:
    seen["cancelled"] = str(error)
seen["listed"] = [
    job.display_name for job in aiplatform.HyperparameterTuningJob.list(filter='NOT display_name="waits"')
]
got = aiplatform.HyperparameterTuningJob.get(jobs["packaged"].resource_name)
seen["got"] = (got.display_name, got.to_dict()["maxTrialCount"], len(got.trials))
failing.delete()
try:
    aiplatform.HyperparameterTuningJob.get(failing.resource_name)
except NotFound as error:
    seen["deleted"] = error.message
print(json.dumps(seen))
