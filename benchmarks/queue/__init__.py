"""CPU time of the scheduler."""
