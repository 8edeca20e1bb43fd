"""A loop under a bar of tqdm, which has the loss behind it."""

import json

import numpy as np
from tqdm import tqdm

rng = np.random.default_rng(0)
x = rng.normal(size=(640, 4))
y = x @ np.array([1.0, -2.0, 3.0, 0.5])
weights = np.zeros(4)
losses = []
for epoch in range(3):
    bar = tqdm(range(0, len(x), 32), desc=f"Epoch {epoch}")
    for start in bar:
        batch, target = x[start : start + 32], y[start : start + 32]
        error = batch @ weights - target
        weights -= 0.02 * batch.T @ error / len(batch)
        losses.append(float((error**2).mean()))
        bar.set_postfix(loss=losses[-1])
with open("losses.json", "w") as file:
    json.dump(losses, file)
