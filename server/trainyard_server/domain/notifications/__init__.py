"""Contents, signatures and retries of notifications. Pure."""
