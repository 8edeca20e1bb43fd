"""A line fitted by gradient descent. Knows no --job-dir."""

import argparse

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--rate", type=float, default=0.5)
arguments = parser.parse_args()

x = np.linspace(-1, 1, 200)
y = 3 * x + 1 + np.random.default_rng(0).normal(0, 0.1, x.size)
slope = bias = 0.0
for epoch in range(1, arguments.epochs + 1):
    error = slope * x + bias - y
    slope -= arguments.rate * float(np.mean(error * x))
    bias -= arguments.rate * float(np.mean(error))
    print(f"Epoch {epoch}/{arguments.epochs}: loss: {float(np.mean(error**2)):.4f}")
