"""Keras with MLflow's autologging, which logs the model too."""

import keras
import mlflow
import numpy as np

keras.utils.set_random_seed(0)
mlflow.tensorflow.autolog()

rng = np.random.default_rng(0)
x = rng.normal(size=(128, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")

model = keras.Sequential(
    [keras.layers.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=32, epochs=4, validation_split=0.25, verbose=2)
