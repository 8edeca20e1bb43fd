"""Output of a training: metrics, checkpoints and the exported model."""
