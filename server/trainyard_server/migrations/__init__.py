"""The schema's history, applied by `database.opened` when the server starts."""
