"""A data-parallel JAX trainer: copy it, change `data.py` and `model.py`, train on one device or on many machines."""
