"""Programs: which files are one, what they need, and how they are packed."""
