"""In place of the package: pictures that are made up, and few, under the name that the program loads."""

from types import SimpleNamespace

import tensorflow as tf


def load(name, as_supervised, with_info):
    assert (name, as_supervised, with_info) == ("cassava", True, True)
    labels = tf.range(48, dtype=tf.int64) % 5
    noise = tf.random.stateless_uniform((48, 40, 30, 3), seed=(1, 2), maxval=50.0)
    pictures = tf.cast(noise + 40.0 * tf.cast(labels, tf.float32)[:, None, None, None], tf.uint8)
    info = SimpleNamespace(features={"label": SimpleNamespace(num_classes=5)})
    return {"train": tf.data.Dataset.from_tensor_slices((pictures, labels))}, info
