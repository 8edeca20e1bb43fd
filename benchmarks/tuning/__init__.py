"""Regret of studies: how far from the optimum their best trial is, and what early stopping saves."""
