"""An estimator of TensorFlow 1's time: train_and_evaluate with parameter servers and an evaluator."""

import argparse

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir", required=True)
job_dir = parser.parse_args().job_dir

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)


def examples():
    x = tf.random.uniform((64, 4), seed=1)
    data = tf.data.Dataset.from_tensor_slices(({"x": x}, tf.reduce_sum(x, axis=1)))
    return data.repeat().batch(8)


config = tf.estimator.RunConfig(model_dir=job_dir, save_checkpoints_steps=50, log_step_count_steps=50)
estimator = tf.estimator.LinearRegressor([tf.feature_column.numeric_column("x", shape=(4,))], config=config)
print(f"{config.task_type} {config.task_id}: {config.num_worker_replicas} workers", flush=True)
tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(examples, max_steps=200),
    tf.estimator.EvalSpec(examples, steps=2, start_delay_secs=1, throttle_secs=1),
)
