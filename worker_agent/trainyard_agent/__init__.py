"""The worker agent: makes what runs on its machine equal to what the server wants.

It dials out and never listens. It can die and come back at any moment: replicas outlive it, and everything
it must remember is on disk.
"""
