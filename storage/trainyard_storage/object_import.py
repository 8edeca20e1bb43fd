"""Import of the buckets that an earlier release kept in the same directory: objects as files, named in `.meta`."""

import json
import logging
import shutil
from contextlib import suppress
from pathlib import Path

from trainyard_storage.object_records import Conditions, Taken
from trainyard_storage.object_store import ObjectStore
from trainyard_storage.storage_messages import Refused, check_name, properties

_DIRECTORY = ".cloudstorage"
_LIST = ".meta"
_LINK = ".importing"

_log = logging.getLogger(__name__)


def import_earlier(data_dir: Path, store: ObjectStore) -> None:
    """Bring the objects of an earlier release into the store, and remove its directory. It may be repeated after it
    was interrupted: files stay where they were until all are in the store, and what is there already stays."""
    root = data_dir / _DIRECTORY
    if not (root / _LIST).is_file():
        return
    _log.info("importing the buckets of an earlier release: each object is read once")
    earlier = json.loads((root / _LIST).read_bytes())
    for bucket in earlier.get("buckets") or {}:
        with suppress(Taken):
            store.make_bucket(bucket, {})
    count = 0
    for bucket, objects in (earlier.get("objects") or {}).items():
        for name, resource in objects.items():
            try:
                count += _import(root, bucket, name, resource, store)
            except Refused as refused:
                _log.warning("not imported: %r of gs://%s: %s", name, bucket, refused.message)
    shutil.rmtree(root)
    _log.info("imported %d objects of an earlier release", count)


def _import(root: Path, bucket: str, name: str, resource: object, store: ObjectStore) -> bool:
    path = root / bucket / name.replace("\\", "/").strip("/")
    if store.find(bucket, check_name(name)) or not path.is_file() or not isinstance(resource, dict):
        return False
    try:
        described = properties(resource)
    except Refused:
        described = {}  # the earlier release took any value
    link = root / _LINK
    link.unlink(missing_ok=True)
    link.hardlink_to(path)
    with store.drafting() as draft:
        draft.adopt(link)
        store.put(bucket, name, draft, described, Conditions())
    return True
