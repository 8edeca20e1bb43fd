"""The command line: `trainyard`, and `jobs`, which is the same as `trainyard jobs`."""
