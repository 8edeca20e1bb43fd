"""What replicas run on. `base` is the contract; every runtime here passes the same suite of tests."""
