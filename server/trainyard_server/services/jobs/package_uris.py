"""Checks of a new job's packages: uploaded here, or on gs://."""

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, Violation
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.net.gcs import SCHEME as GS
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.storage.readable_objects import unreadable
from trainyard_server.storage.uploads import SCHEME
from trainyard_storage.remote import GOOGLE


def check_package_uris(backend: Backend, caller: Caller, training_input: TrainingInput) -> None:
    """Raises InvalidArgument for a URI of another kind, FailedPrecondition for packages that no project that the caller
    sees has uploaded, and where the site says so for objects of gs:// that the server cannot read; Unavailable."""
    wrong, missing, objects = [], [], []
    for number, uri in enumerate(training_input.package_uris):
        if uri.startswith(SCHEME):
            if not backend.uploads.has(caller.visible, uri):
                missing.append(uri)
        elif uri.startswith(GS):
            objects.append(uri)
        else:
            text = f"must start with gs:// or {SCHEME}; this is {uri!r}."
            wrong.append(Violation(f"package_uris[{number}]", text))
    if wrong:
        raise InvalidArgument(wrong)
    if missing:
        text = f"The provided paths [{', '.join(missing)}] cannot be read: they were never uploaded here."
        raise FailedPrecondition(Violation("package_uris", text))
    if objects and backend.settings.check_packages:
        _check_objects(backend, list(dict.fromkeys(objects)))


def _check_objects(backend: Backend, objects: list[str]) -> None:
    address = backend.settings.storage or backend.settings.storage_emulator
    unread = unreadable(objects, "" if address == GOOGLE else address)
    if unread:
        why = " ".join(unread.values())
        text = f"The provided GCS paths [{', '.join(unread)}] cannot be read by this server: {why}"
        raise FailedPrecondition(Violation("package_uris", text))
