"""Fit a line to noisy points by gradient descent.

Each printed line with a step and a number is a point of a curve on the job's page.
"""

import argparse
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--learning-rate", type=float, default=0.1)
args = parser.parse_args()

random.seed(1)
points = [(x, 3 * x + 1 + random.gauss(0, 0.1)) for x in (random.random() for _ in range(100))]
slope = offset = 0.0
for step in range(1, args.steps + 1):
    errors = [(x, slope * x + offset - y) for x, y in points]
    loss = sum(error**2 for _, error in errors) / len(points)
    slope -= args.learning_rate * sum(2 * error * x for x, error in errors) / len(points)
    offset -= args.learning_rate * sum(2 * error for _, error in errors) / len(points)
    print(f"step {step} loss {loss:.4f}", flush=True)
    time.sleep(0.1)
print(f"y = {slope:.2f} x + {offset:.2f}")
