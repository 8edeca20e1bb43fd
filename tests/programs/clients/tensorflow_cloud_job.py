"""The call with which `tensorflow_cloud.run` submits a job once its image is pushed."""

from tensorflow_cloud.core import deploy, machine_config

cpu = machine_config.COMMON_MACHINE_CONFIGS["CPU"]
tpu = machine_config.COMMON_MACHINE_CONFIGS["TPU"]
image = "example.com/trainer:1"
print("alone", deploy.deploy_job(image, cpu, 0, None, ["--epochs", "1"], False, job_labels={"a": "b"}))
print("tpu", deploy.deploy_job(image, cpu, 1, tpu, None, False))
