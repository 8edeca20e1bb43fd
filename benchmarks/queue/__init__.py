"""How long the scheduler plans."""
