"""Custom jobs by Vertex AI's own client: `vertex_custom_jobs.py PACKAGE IMAGE`, a package with the module trainer.task and
an image with Python. Prints what it sees as JSON."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from google.api_core.exceptions import BadRequest, GoogleAPICallError, NotFound
from google.cloud import aiplatform, storage

EXECUTOR = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-15.py310:latest"
package, image = sys.argv[1:]
aiplatform.init(
    project=os.environ["GOOGLE_CLOUD_PROJECT"],
    location="us-central1",
    staging_bucket="gs://vertex",
    api_transport="rest",
    api_endpoint=f"aiplatform.{os.environ['GOOGLE_CLOUD_UNIVERSE_DOMAIN']}",
)
bucket = storage.Client().create_bucket("vertex")
bucket.blob("trainer-1.tar.gz").upload_from_filename(package)


def packaged(name: str, *args: str, workers: int = 0, machine: str = "n1-standard-4") -> aiplatform.CustomJob:
    program = {
        "executor_image_uri": EXECUTOR,
        "package_uris": ["gs://vertex/trainer-1.tar.gz"],
        "python_module": "trainer.task",
        "args": list(args),
        "env": [{"name": "GREETING", "value": "hello"}],
    }
    pool = {"machine_spec": {"machine_type": machine}, "replica_count": 1, "python_package_spec": program}
    pools = [pool, {**pool, "replica_count": workers}] if workers else [pool]
    return aiplatform.CustomJob(display_name=name, worker_pool_specs=pools, labels={"team": "a"})


def of_script() -> aiplatform.CustomJob:
    with open("script.py", "w") as script:
        script.write("import os, sys\nprint('script', sys.argv[1:], os.environ['AIP_MODEL_DIR'])\n")
    return aiplatform.CustomJob.from_local_script(
        display_name="script", script_path="script.py", container_uri=EXECUTOR, args=["--epochs", "1"]
    )


def in_container() -> aiplatform.CustomJob:
    command = ["python3", "-c", "import os; print('in a container:', os.environ['CLUSTER_SPEC'])"]
    pool = {
        "machine_spec": {"machine_type": "n1-standard-4"},
        "replica_count": 1,
        "container_spec": {"image_uri": image, "command": command},
    }
    return aiplatform.CustomJob(display_name="in a container", worker_pool_specs=[pool])


def others() -> dict[str, Callable[[], object]]:
    """Calls of what is not here."""
    job = packaged("other")
    in_image = aiplatform.CustomContainerTrainingJob("c", container_uri=image)
    return {
        "container": lambda: in_image.run(machine_type="n1-standard-4"),
        "pipelines": aiplatform.CustomTrainingJob.list,
        "upload": lambda: aiplatform.Model.upload(display_name="m", serving_container_image_uri=image),
        "endpoint": lambda: aiplatform.Endpoint.create(display_name="e"),
        "datasets": aiplatform.TabularDataset.list,
        "schedules": aiplatform.PipelineJobSchedule.list,
        "predictions": aiplatform.BatchPredictionJob.list,
        "indexes": aiplatform.MatchingEngineIndex.list,
        "tensorboard": lambda: aiplatform.Tensorboard.create(display_name="t"),
        "experiment": lambda: aiplatform.init(experiment="e"),
        "tensorboard of a job": lambda: job.submit(tensorboard="projects/p/x", service_account="a@b"),
        "tpu": lambda: packaged("tpu", machine="cloud-tpu").submit(),
        "labels": lambda: aiplatform.CustomJob("l", job.job_spec.worker_pool_specs, labels={"Team": "A"}).submit(),
        "s3": lambda: aiplatform.CustomJob("s", job.job_spec.worker_pool_specs, base_output_dir="s3://b/o").submit(),
    }


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    try:
        call()
    except GoogleAPICallError as error:
        return int(error.code or 0), error.message.partition(": ")[2]
    return 200, ""


seen: dict[str, Any] = {}
trained = packaged("trains", "--epochs", "1", workers=1)
trained.run(sync=True, timeout=3600)
script = of_script()
script.run(sync=True)
contained = in_container()
contained.run(sync=True)
seen["names"] = {job.display_name: job.name for job in (trained, script, contained)}
seen["states"] = [job.state.name for job in (trained, script, contained)]
failed = packaged("fails", "--fail")
try:
    failed.run(sync=True)
except RuntimeError as error:
    seen["failed"] = str(error)
dies = packaged("dies", "--die")
try:
    dies.run(sync=True, disable_retries=True)
except RuntimeError as error:
    seen["died"] = str(error)
try:
    packaged("refused", machine="n1-standard-5").submit()
except BadRequest as error:
    seen["refused"] = error.message
cancelled = packaged("cancelled", "--wait")
cancelled.submit()
cancelled.cancel()
try:
    cancelled.wait_for_completion()
except RuntimeError as error:
    seen["cancelled"] = str(error)
seen["listed"] = [job.display_name for job in aiplatform.CustomJob.list(filter='NOT state="JOB_STATE_CANCELLED"')]
got = aiplatform.CustomJob.get(trained.resource_name)
seen["pools"] = [(pool.replica_count, pool.machine_spec.machine_type) for pool in got.job_spec.worker_pool_specs]
failed.delete()
try:
    aiplatform.CustomJob.get(failed.resource_name)
except NotFound as error:
    seen["deleted"] = error.message
seen["names"]["dies"] = dies.name
seen["others"] = {name: refusal(call) for name, call in others().items()}
print(json.dumps(seen))
