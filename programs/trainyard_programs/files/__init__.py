"""Which files are the program: the one answer for whatever is sent to a replica."""

from trainyard_programs.files.listing import (
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
