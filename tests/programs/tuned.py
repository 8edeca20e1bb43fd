"""A trainer for AI Platform's tuning, as its documentation has them: flags, and cloudml-hypertune."""

import argparse

import hypertune

parser = argparse.ArgumentParser()
parser.add_argument("--momentum", type=float)
parser.add_argument("--job-dir")
momentum = parser.parse_args().momentum

tuning = hypertune.HyperTune()
for step in (1, 2, 3):
    tuning.report_hyperparameter_tuning_metric(
        hyperparameter_metric_tag="accuracy", metric_value=momentum * step, global_step=step
    )
