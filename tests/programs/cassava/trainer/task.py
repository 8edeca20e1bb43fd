"""Training on several machines, as Google's tutorial for AI Platform Training had it."""

import argparse
import os

import tensorflow as tf
import tensorflow_datasets as tfds

from trainer.model import create_model

PER_REPLICA_BATCH_SIZE = 4


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", required=True, type=int, help="number of epochs")
    parser.add_argument("--job-dir", required=True, type=str, help="where the model is saved, a bucket")
    return parser.parse_args()


def preprocess(image, label):
    image = tf.image.resize(image, (32, 32))
    return tf.cast(image, tf.float32) / 255.0, label


def create_dataset(batch_size):
    data, info = tfds.load(name="cassava", as_supervised=True, with_info=True)
    train = data["train"].map(preprocess, num_parallel_calls=tf.data.experimental.AUTOTUNE)
    train = train.shuffle(1000).batch(batch_size).prefetch(tf.data.experimental.AUTOTUNE)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return train.with_options(options), info.features["label"].num_classes


def _is_chief(task_type):
    return task_type == "chief"


def _temporary_directory(directory, task_id):
    path = os.path.join(directory, f"workertemp_{task_id}")
    tf.io.gfile.makedirs(path)
    return path


def write_filepath(filepath, task_type, task_id):
    """All replicas save, as the strategy needs; each but the chief where nobody looks."""
    directory, base = os.path.dirname(filepath), os.path.basename(filepath)
    if not _is_chief(task_type):
        directory = _temporary_directory(directory, task_id)
    return os.path.join(directory, base)


def main():
    args = get_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    train, number_of_classes = create_dataset(PER_REPLICA_BATCH_SIZE * strategy.num_replicas_in_sync)
    with strategy.scope():
        model = create_model(number_of_classes)
    model.fit(train, epochs=args.epochs)

    resolver = strategy.cluster_resolver
    model.save(write_filepath(args.job_dir, resolver.task_type, resolver.task_id))


if __name__ == "__main__":
    main()
