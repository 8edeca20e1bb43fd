"""The vocabulary that the command line, the server and the worker agent share.

Nothing here opens a socket, reads a clock or knows of a database: it is data, and pure functions over it.
"""

__version__ = "0.1.0"
