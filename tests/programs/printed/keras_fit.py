"""Keras' fit as its guide has it."""

import json

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(256, 4))
y = (x.sum(axis=1) > 0).astype("float32")
x_val = np.random.default_rng(1).normal(size=(64, 4))
y_val = (x_val.sum(axis=1) > 0).astype("float32")

model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, epochs=3, validation_data=(x_val, y_val))
with open("history.json", "w") as file:
    json.dump(history.history, file)
