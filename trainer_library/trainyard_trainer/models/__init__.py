"""The networks, and what every model has in common."""
