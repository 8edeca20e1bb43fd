"""The processes of a job: who they are, how they meet, and what each may use."""
