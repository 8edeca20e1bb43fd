"""Which files are the program: the one answer for whatever is sent to a replica."""

from trainyard_cli.submission.files.listing import (
    EXPECTED,
    MAX_BYTES,
    MAX_FILES,
    LeftOut,
    ProgramFile,
    ProgramListing,
    checkout_of,
    list_files,
)

__all__ = [
    "EXPECTED",
    "MAX_BYTES",
    "MAX_FILES",
    "LeftOut",
    "ProgramFile",
    "ProgramListing",
    "checkout_of",
    "list_files",
]
