"""Keras with MLflow's autologging."""

import keras
import mlflow
import numpy

mlflow.tensorflow.autolog(log_models=False)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
features = numpy.random.default_rng(0).normal(size=(64, 4))
model.fit(features, features.sum(axis=1), epochs=3, verbose=0)
