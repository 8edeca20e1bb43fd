"""A script for W&B with one import changed."""

import numpy

import trainyard.wandb as wandb

run = wandb.init(project="digits", config={"lr": 0.05, "model": {"layers": 3}})
for epoch in range(5):
    wandb.log({"loss": 1 / (epoch + 1), "val": {"accuracy": epoch / 5}})
wandb.log({"sample": wandb.Image(numpy.zeros((8, 8, 3), "uint8"))})
run.summary["best_accuracy"] = 0.8
wandb.finish()
