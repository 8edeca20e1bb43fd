"""Pages of people: signing in, tokens, the audit, notifications."""
