"""Which files are the program: the one answer for whatever is sent to a replica."""

from trainyard_programs.files.listing import (
    CACHES,
    EXPECTED,
    HISTORIES,
    MAX_BYTES,
    MAX_FILES,
    LeftOut,
    ProgramFile,
    ProgramListing,
    checkout_of,
    list_files,
)

__all__ = [
    "CACHES",
    "EXPECTED",
    "HISTORIES",
    "MAX_BYTES",
    "MAX_FILES",
    "LeftOut",
    "ProgramFile",
    "ProgramListing",
    "checkout_of",
    "list_files",
]
