"""Commands that run beside a replica's program, and connections to its ports."""
