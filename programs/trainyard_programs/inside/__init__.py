"""Modules of the wheel of a program that run in the job: the command line imports none of them."""
