"""The schema's history, applied by `store.migrate` when the server starts."""
