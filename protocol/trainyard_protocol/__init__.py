"""The shared protocol of the command line, the server and the worker agent: data and pure functions over it.

Only `gcs`, the access to Google Cloud Storage, does I/O.
"""

__version__ = "0.2.0"
