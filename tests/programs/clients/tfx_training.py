"""The call with which TFX's Trainer on AI Platform trains: it returns at the end of the job, and raises if that failed."""

import sys

from tfx.extensions.google_cloud_ai_platform import runner
from tfx.types import standard_artifacts

runner._POLLING_INTERVAL_IN_SECONDS = 1  # of 30, so that a test need not wait for them


def train(job: str, **properties: object) -> None:
    examples, model = standard_artifacts.Examples(), standard_artifacts.Model()
    examples.uri, model.uri = "gs://tfx/examples", "gs://tfx/model"
    runner.start_cloud_training(
        {"examples": [examples]},
        {"model": [model]},
        {"module_file": "gs://tfx/module.py", **properties},
        "tfx.components.trainer.executor.GenericExecutor",
        {"project": "local", "region": "us-central1", "masterConfig": {"imageUri": sys.argv[1]}},
        job,
        {"team": "a"},
    )


train("by_tfx", exit_code=0)
try:
    train("fails_by_tfx", exit_code=3)
except RuntimeError as failed:
    print("failed:", failed)
