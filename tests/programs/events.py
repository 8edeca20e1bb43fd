"""Writes TensorBoard event files where Vertex AI says they belong, and prints nothing."""

import os

from tensorboardX import SummaryWriter

with SummaryWriter(os.path.join(os.environ["AIP_TENSORBOARD_LOG_DIR"], os.environ["RANK"])) as writer:
    for step in range(1, 6):
        writer.add_scalar("train/loss", 1 / step, step)
