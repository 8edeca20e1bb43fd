import keras
import numpy as np

rng = np.random.default_rng(0)
images = rng.random((256, 16)).astype("float32")
labels = (images.sum(axis=1) > 8).astype("int32")

model = keras.Sequential(
    [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2, activation="softmax")]
)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(images, labels, epochs=3, batch_size=32, validation_split=0.25)
