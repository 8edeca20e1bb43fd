"""Live state: rows of jobs and agents in memory, as the last commit left them."""
