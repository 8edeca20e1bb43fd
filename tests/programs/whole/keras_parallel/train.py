import os

os.environ["KERAS_BACKEND"] = "jax"

import keras

keras.distribution.initialize()

import jax
import numpy as np

devices = keras.distribution.list_devices()
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False))
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
x = np.random.default_rng(0).normal(size=(128, 4)).astype("float32")
history = model.fit(x, x.sum(axis=1, keepdims=True), batch_size=32, epochs=2, verbose=2, shuffle=False)
print(f"process {jax.process_index()} of {jax.process_count()}, {len(devices)} devices")
