"""A data-parallel JAX trainer: copy it, adapt `data` and `models`, train on one device or on many machines."""
