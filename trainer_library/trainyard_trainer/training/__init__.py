"""Training in step: devices, state, steps and the loop."""
