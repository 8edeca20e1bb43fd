"""What of the wheel of a program runs in the job: nothing here is imported by the command line."""
