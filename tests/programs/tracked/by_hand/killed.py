"""A program that the system kills, as it does for want of memory."""

import os
import signal

import mlflow

mlflow.set_experiment("unlucky")

mlflow.start_run(run_name="killed")
mlflow.log_param("lr", 0.1)
for step in range(5):
    mlflow.log_metric("loss", 1 / (step + 1), step=step)
mlflow.log_text("written before the end", "notes.txt")
os.kill(os.getpid(), signal.SIGKILL)
