"""The worker agent: runs on its machine what the server orders, and reports it.

It connects to the server and never listens. It can be killed and restarted at any time: replicas outlive it, and its
state is on disk.
"""
