"""Buckets and objects of the local storage: contents as files, their names and properties in a SQLite database.

An object's content is written to a file of its own, and is on the disk before the database names it. So an object is
there as a whole or not at all, whatever ends when, and who reads one reads on when it is replaced.
"""

import fcntl
import json
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any, BinaryIO

from trainyard_storage.files import Draft, room, sync_directory
from trainyard_storage.records import (
    BucketRecord,
    Conditions,
    Listing,
    Missing,
    ObjectRecord,
    Page,
    Properties,
    Taken,
    UploadRecord,
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, created INTEGER NOT NULL, properties TEXT NOT NULL)
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
  bucket TEXT NOT NULL, name BLOB NOT NULL, generation INTEGER NOT NULL, metageneration INTEGER NOT NULL,
  file TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, md5 TEXT NOT NULL, crc32c TEXT NOT NULL,
  components INTEGER NOT NULL, updated INTEGER NOT NULL, properties TEXT NOT NULL,
  PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (
  id TEXT PRIMARY KEY, bucket TEXT NOT NULL, name BLOB NOT NULL, properties TEXT NOT NULL,
  conditions TEXT NOT NULL, size INTEGER, created INTEGER NOT NULL, generation INTEGER NOT NULL) WITHOUT ROWID;
"""
_SELECT = """
SELECT bucket, name, generation, metageneration, file, size, md5, crc32c, components, updated, properties
FROM objects WHERE bucket = ? AND name """
_INSERT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPLOAD_AGE_US = 7 * 86400 * 10**6


class ObjectStore:
    """Buckets and objects below `root`. For several threads of one process, which alone uses the directory."""

    def __init__(self, root: Path) -> None:
        self._files, self._drafts, self._parts = root / "objects", root / "drafts", root / "uploads"
        for directory in (self._files, self._drafts, self._parts):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = RLock()
        self._guard = (root / "lock").open("a")
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._guard.close()
            raise
        self._database = sqlite3.connect(
            root / "objects.db", check_same_thread=False, isolation_level=None, cached_statements=64
        )
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.executescript(_SCHEMA)
        self._last = self._read_last()
        self._sweep()

    def close(self) -> None:
        with self._lock:
            self._database.close()
            self._guard.close()

    def room(self) -> int:
        """The bytes that uploads may still take of the disk."""
        return room(self._files)

    def draft(self) -> Draft:
        """Bytes to be received; the caller closes it."""
        return Draft(self._drafts)

    @contextmanager
    def drafting(self) -> Iterator[Draft]:
        """The same, closed at the end."""
        draft = self.draft()
        try:
            yield draft
        finally:
            draft.close()

    # Buckets

    def buckets(self) -> list[BucketRecord]:
        with self._lock:
            rows = self._database.execute("SELECT name, created, properties FROM buckets ORDER BY name")
            return [BucketRecord(name, created, json.loads(text)) for name, created, text in rows]

    def bucket(self, name: str) -> BucketRecord:
        """The bucket. One that nobody has made is there, too: empty, and made with its first object."""
        with self._lock:
            row = self._database.execute("SELECT created, properties FROM buckets WHERE name = ?", (name,)).fetchone()
        return BucketRecord(name, row[0], json.loads(row[1])) if row else BucketRecord(name, 0)

    def make_bucket(self, name: str, properties: Properties) -> BucketRecord:
        """Raises Taken."""
        with self._writing():
            try:
                self._database.execute("INSERT INTO buckets VALUES (?, ?, ?)", (name, _now(), json.dumps(properties)))
            except sqlite3.IntegrityError as error:
                raise Taken(f"The bucket {name} exists already.") from error
        return self.bucket(name)

    def update_bucket(self, name: str, properties: Properties) -> BucketRecord:
        with self._writing():
            self._ensure_bucket(name)
            self._database.execute("UPDATE buckets SET properties = ? WHERE name = ?", (json.dumps(properties), name))
        return self.bucket(name)

    def delete_bucket(self, name: str) -> None:
        """Raises Missing, Taken."""
        with self._writing():
            query = "SELECT 1 FROM objects WHERE bucket = ? LIMIT 1"
            if self._database.execute(query, (name,)).fetchone():
                raise Taken(f"The bucket {name} is not empty.")
            if not self._database.execute("DELETE FROM buckets WHERE name = ?", (name,)).rowcount:
                raise Missing(f"There is no bucket {name}.")

    # Objects

    def find(self, bucket: str, name: str) -> ObjectRecord | None:
        """The object; None if there is none."""
        with self._lock:
            row = self._database.execute(_SELECT + "= ?", (bucket, name.encode())).fetchone()
        return _record(row) if row else None

    def get(
        self, bucket: str, name: str, generation: int | None = None, conditions: Conditions | None = None
    ) -> ObjectRecord:
        """Raises Missing, ConditionFailed."""
        record = self.find(bucket, name)
        if record is None or generation not in (None, record.generation):
            raise Missing(f"No such object: {bucket}/{name}")
        if conditions is not None:
            conditions.check(record, reading=True)
        return record

    def open(
        self, bucket: str, name: str, generation: int | None = None, conditions: Conditions | None = None
    ) -> tuple[ObjectRecord, BinaryIO]:
        """The object and its content, which the caller closes. Raises Missing, ConditionFailed."""
        while True:
            record = self.get(bucket, name, generation, conditions)
            try:
                return record, self._path(record.file).open("rb")
            except FileNotFoundError:
                if self.find(bucket, name) == record:
                    raise  # else it was replaced in between

    def put(
        self,
        bucket: str,
        name: str,
        draft: Draft,
        properties: Properties,
        conditions: Conditions,
        components: int = 0,
        upload: UploadRecord | None = None,
    ) -> ObjectRecord:
        """Store a draft as the object, to which `upload` thereby has come. Raises ConditionFailed, OSError."""
        record = ObjectRecord(
            *(bucket, name, 0, 1, uuid.uuid4().hex, draft.size),
            *("" if components else draft.md5, draft.crc32c, components, 0, properties),
        )
        path = self._new_path(record.file)
        draft.save().replace(path)
        sync_directory(path.parent)
        return self._commit(record, conditions, upload)

    def copy(
        self, source: ObjectRecord, bucket: str, name: str, properties: Properties, conditions: Conditions
    ) -> ObjectRecord:
        """Store the content of an object as another one too. Raises Missing, ConditionFailed."""
        record = replace(
            source, bucket=bucket, name=name, file=uuid.uuid4().hex, metageneration=1, properties=properties
        )
        path = self._new_path(record.file)
        try:
            os.link(self._path(source.file), path)
        except FileNotFoundError:
            raise Missing(f"No such object: {source.bucket}/{source.name}") from None
        sync_directory(path.parent)
        return self._commit(record, conditions)

    def update(
        self, bucket: str, name: str, properties: Properties, conditions: Conditions, generation: int | None
    ) -> ObjectRecord:
        """Replace what is said of an object. Raises Missing, ConditionFailed."""
        with self._writing():
            record = self.get(bucket, name, generation)
            conditions.check(record)
            self._database.execute(
                "UPDATE objects SET properties = ?, metageneration = metageneration + 1, updated = ? "
                "WHERE bucket = ? AND name = ?",
                (json.dumps(properties), _now(), bucket, name.encode()),
            )
            return self.get(bucket, name)

    def delete(self, bucket: str, name: str, conditions: Conditions, generation: int | None) -> None:
        """Raises Missing, ConditionFailed."""
        with self._writing():
            record = self.get(bucket, name, generation)
            conditions.check(record)
            self._database.execute("DELETE FROM objects WHERE bucket = ? AND name = ?", (bucket, name.encode()))
        self._path(record.file).unlink(missing_ok=True)

    def page(self, bucket: str, listing: Listing) -> Page:
        """A page of objects, in the order of the names as bytes."""
        prefix, delimiter = listing.prefix.encode(), listing.delimiter.encode()
        page, last, at = Page(), b"", max(prefix, listing.start.encode())
        if listing.after and listing.after >= at:
            at = _skip(listing.after, prefix, delimiter)
        end = min((e for e in (_after_all(prefix), listing.end.encode()) if e), default=b"")
        step = 1 if delimiter else listing.most + 1
        while records := self._next(
            bucket, at, end, min(step, listing.most - len(page.items) - len(page.prefixes) + 1)
        ):
            step *= 2
            for record in records:
                name = record.name.encode()
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                if len(page.items) + len(page.prefixes) == listing.most:
                    page.next = last
                    return page
                if cut < 0:
                    page.items.append(record)
                    last = name
                    at = name + b"\0"
                    continue
                last = name[: cut + len(delimiter)]
                page.prefixes.append(last.decode())
                if listing.with_trailing and name == last:
                    page.items.append(record)
                at, step = _after_all(last), 1  # whatever else begins with it is passed over
                break
        return page

    # Resumable uploads

    def begin_upload(self, upload: UploadRecord) -> None:
        with self._writing():
            values = (upload.id, upload.bucket, upload.name.encode(), json.dumps(upload.properties))
            conditions = [getattr(upload.conditions, name) for name in Conditions.__slots__]
            self._database.execute(
                "INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                (*values, json.dumps(conditions), upload.size, _now()),
            )

    def upload(self, upload_id: str) -> UploadRecord:
        """Raises Missing."""
        with self._lock:
            row = self._database.execute(
                "SELECT id, bucket, name, properties, conditions, size, generation FROM uploads WHERE id = ?",
                (upload_id,),
            ).fetchone()
        if row is None:
            raise Missing("There is no such upload, or it was cancelled.")
        name, properties, conditions = row[2].decode(), json.loads(row[3]), Conditions(*json.loads(row[4]))
        return UploadRecord(row[0], row[1], name, properties, conditions, row[5], row[6])

    def part(self, upload: UploadRecord) -> Path:
        """The file with what an upload has so far; it may not be there."""
        return self._parts / upload.id

    def end_upload(self, upload: UploadRecord) -> None:
        """Forget an upload and what it has."""
        with self._writing():
            self._database.execute("DELETE FROM uploads WHERE id = ?", (upload.id,))
        self.part(upload).unlink(missing_ok=True)

    # Inside

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction."""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # SQLite ends it by itself where the disk is full
                    self._database.execute("ROLLBACK")
                raise

    def _commit(self, record: ObjectRecord, conditions: Conditions, upload: UploadRecord | None = None) -> ObjectRecord:
        """Name a content that is on the disk; what had the name before is removed. Raises ConditionFailed."""
        try:
            with self._writing():
                before = self.find(record.bucket, record.name)
                conditions.check(before)
                self._last = generation = max(_now(), self._last + 1)
                committed = replace(record, generation=generation, updated=generation)
                self._ensure_bucket(committed.bucket)
                values = [getattr(committed, name) for name in ObjectRecord.__slots__]
                values[1], values[-1] = committed.name.encode(), json.dumps(committed.properties)
                self._database.execute(_INSERT, values)
                if upload is not None:
                    query = "UPDATE uploads SET generation = ? WHERE id = ?"
                    self._database.execute(query, (generation, upload.id))
        except BaseException:
            self._path(record.file).unlink(missing_ok=True)
            raise
        if before is not None:
            self._path(before.file).unlink(missing_ok=True)
        return committed

    def _ensure_bucket(self, name: str) -> None:
        self._database.execute("INSERT OR IGNORE INTO buckets VALUES (?, ?, '{}')", (name, _now()))

    def _next(self, bucket: str, start: bytes, end: bytes, most: int) -> list[ObjectRecord]:
        query = ">= ? AND name < ?" if end else ">= ?"
        values = (bucket, start, end) if end else (bucket, start)
        with self._lock:
            rows = self._database.execute(f"{_SELECT}{query} ORDER BY name LIMIT ?", (*values, most)).fetchall()
        return list(map(_record, rows))

    def _new_path(self, file: str) -> Path:
        path = self._path(file)
        if not path.parent.is_dir():
            path.parent.mkdir(exist_ok=True)
            sync_directory(self._files)
        return path

    def _path(self, file: str) -> Path:
        return self._files / file[:2] / file

    def _read_last(self) -> int:
        row = self._database.execute("SELECT MAX(generation) FROM objects").fetchone()
        return int(row[0] or 0)

    def _sweep(self) -> None:
        """Remove what an earlier process left unfinished, and uploads that nobody continues."""
        for draft in self._drafts.iterdir():
            draft.unlink()
        self._database.execute("DELETE FROM uploads WHERE created < ?", (_now() - _UPLOAD_AGE_US,))
        live = {row[0] for row in self._database.execute("SELECT id FROM uploads WHERE generation = 0")}
        live |= {row[0] for row in self._database.execute("SELECT file FROM objects")}
        for path in (*self._parts.iterdir(), *self._files.glob("??/*")):
            if path.name not in live:
                path.unlink()


def _record(row: Any) -> ObjectRecord:
    values = row[0], row[1].decode(), *row[2:10], json.loads(row[10])
    return ObjectRecord(*values)


def _now() -> int:
    return time.time_ns() // 1000


def _after_all(prefix: bytes) -> bytes:
    """The first name after all that begin with the prefix; b"" if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


def _skip(last: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """The name at which a listing goes on after its last name, or after all of its last common prefix."""
    is_prefix = delimiter and last.endswith(delimiter) and last.find(delimiter, len(prefix)) >= 0
    return _after_all(last) if is_prefix else last + b"\0"
