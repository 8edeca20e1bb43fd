"""The API of the local storage, without HTTP: what the clients of Google Cloud Storage rely on."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote, urlsplit

import google_crc32c
import pytest

from trainyard_storage import store as object_store
from trainyard_storage.api import StorageApi
from trainyard_storage.messages import Call, FilePart
from trainyard_storage.records import Conditions

BASE = "http://storage"
OBJECTS = "/storage/v1/b/data/o"
UPLOAD = "/upload/storage/v1/b/data/o?uploadType="


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["error"]["errors"][0]["reason"])


class Local:
    """A storage in a directory. `_` in the names of headers is `-`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.api = StorageApi(directory)

    def ask(self, method: str, target: str, body: object = b"", **headers: str) -> Reply:
        sent = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        with self.api.store.drafting() as draft:
            draft.write(body if isinstance(body, bytes) else json.dumps(body).encode())
            answer = self.api.answer(Call(method, target, sent, draft, BASE))
        content = answer.body
        if isinstance(content, FilePart):
            with content.file as file:
                file.seek(content.start)
                content = file.read(content.length)
        assert isinstance(content, bytes)
        return Reply(answer.status, {name.lower(): value for name, value in answer.headers}, content)

    def put(self, name: str, body: bytes = b"x", query: str = "", **headers: str) -> Reply:
        return self.ask("POST", f"{UPLOAD}media&name={quote(name, safe='')}{query}", body, **headers)

    def get(self, name: str, **headers: str) -> Reply:
        return self.ask("GET", f"{OBJECTS}/{quote(name, safe='')}?alt=media", **headers)

    def listed(self, query: str) -> tuple[list[str], list[str], str]:
        answer = self.ask("GET", f"{OBJECTS}?{query}").json
        names = [item["name"] for item in answer.get("items", [])]
        return names, answer.get("prefixes", []), answer.get("nextPageToken", "")

    def begin(self, name: str, query: str = "", **headers: str) -> str:
        """The address of a new resumable upload."""
        target = f"/resumable{UPLOAD}resumable&name={quote(name, safe='')}{query}"
        location = self.ask("POST", target, b"", **headers).headers["location"]
        assert location.startswith(f"{BASE}/resumable/upload/storage/v1/b/data/o?")
        return location.removeprefix(BASE)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    made = Local(tmp_path / "gcs")
    yield made
    made.api.close()


def test_multipart_is_read_with_any_boundary_and_checked(local: Local) -> None:
    """gcloud's boundary is in single quotes."""
    content = b"--==1==\r\n\0 and lines\r\nwithout an end"
    described = {"name": "a/b", "metadata": {"k": "v"}, "md5Hash": _md5(content), "crc32c": _crc(content)}
    cases = (("===123==", b"\r\n", '"'), ("b", b"\n", '"'), ("a'()+_,-./:=? b", b"\r\n", '"'), ("==4==", b"\n", "'"))
    for boundary, line, sign in cases:
        mark = b"--" + boundary.encode()
        head = [mark, b"Content-Type: application/json", b"", json.dumps(described).encode(), mark]
        body = line.join([*head, b"Content-Type: text/csv", b"", content, mark + b"--", b""])
        kind = f"multipart/related; boundary={sign}{boundary}{sign}; charset=utf-8"
        made = local.ask("POST", f"{UPLOAD}multipart", body, Content_Type=kind)
        assert made.status == 200, (boundary, made.body)
        assert (made.json["contentType"], made.json["metadata"]) == ("text/csv", {"k": "v"})
        assert (made.json["size"], made.json["bucket"]) == (str(len(content)), "data")
        assert local.get("a/b").body == content
        wrong = local.ask("POST", f"{UPLOAD}multipart", body.replace(b"lines", b"LINES"), Content_Type=kind)
        assert (wrong.status, wrong.reason) == (400, "invalid")
    assert local.put("c", content, X_Goog_Hash=f"crc32c={_crc(b'other')}").status == 400
    assert local.get("c").status == 404


def test_resumable_upload_goes_on_where_it_was_left(local: Local) -> None:
    content = bytes(range(256)) * 4096
    at = local.begin("big", X_Upload_Content_Type="image/png", X_Upload_Content_Length=str(len(content)))
    size, half = len(content), len(content) // 2
    asked = local.ask("PUT", at, Content_Range=f"bytes */{size}")
    assert (asked.status, "range" in asked.headers) == (308, False)
    sent = local.ask("PUT", at, content[:half], Content_Range=f"bytes 0-{half - 1}/{size}")
    assert (sent.status, sent.headers["range"]) == (308, f"bytes=0-{half - 1}")
    ahead = local.ask("PUT", at, b"x", Content_Range=f"bytes {half + 5}-{half + 5}/{size}")
    assert (ahead.status, ahead.headers["range"]) == (308, f"bytes=0-{half - 1}")
    local.api.close()
    again = Local(local.directory)  # another process
    local.api = again.api
    assert local.ask("PUT", at, Content_Range="bytes */*").headers["range"] == f"bytes=0-{half - 1}"
    # A part of it was there already.
    last = local.ask("PUT", at, content[half - 100 :], Content_Range=f"bytes {half - 100}-{size - 1}/{size}")
    assert (last.status, last.json["contentType"], last.json["md5Hash"]) == (200, "image/png", _md5(content))
    assert local.get("big").body == content
    repeated = local.ask("PUT", at, Content_Range=f"bytes */{size}")  # its answer was lost
    assert (repeated.status, repeated.json["generation"]) == (200, last.json["generation"])


def test_resumable_upload_of_unknown_size_empty_at_once_or_cancelled(local: Local) -> None:
    at = local.begin("grows")
    assert local.ask("PUT", at, b"abc", Content_Range="bytes 0-2/*").headers["range"] == "bytes=0-2"
    assert local.ask("PUT", at, b"de", Content_Range="bytes 3-4/5").json["size"] == "5"
    at = local.begin("ends")
    local.ask("PUT", at, b"abc", Content_Range="bytes 0-2/*")
    assert local.ask("PUT", at, Content_Range="bytes */3").json["crc32c"] == _crc(b"abc")
    assert local.ask("PUT", local.begin("empty"), Content_Range="bytes */0").json["size"] == "0"
    assert local.ask("PUT", local.begin("whole"), b"all of it").json["size"] == "9"
    at = local.begin("cancelled")
    local.ask("PUT", at, b"abc", Content_Range="bytes 0-2/*")
    assert local.ask("DELETE", at).status == 499
    assert local.ask("PUT", at, Content_Range="bytes */3").status == 404
    elsewhere = local.begin("elsewhere").replace("/b/data/", "/b/other/")
    assert local.ask("PUT", elsewhere, b"x").status == 404
    checked = local.begin("checked")
    wrong = local.ask("PUT", checked, b"abc", X_Goog_Hash=f"crc32c={_crc(b'abd')}")
    assert (wrong.status, local.get("checked").status) == (400, 404)
    for text, body in (("bytes 0-9/10", b"abc"), ("0-2/3", b"abc"), ("bytes 0-3/2", b"abcd")):
        assert local.ask("PUT", local.begin("bad"), body, Content_Range=text).status == 400, text


def test_preconditions_hold_at_reads_and_writes(local: Local) -> None:
    first = local.put("a", query="&ifGenerationMatch=0").json["generation"]
    again = local.put("a", b"y", "&ifGenerationMatch=0")
    assert (again.status, again.reason, local.get("a").body) == (412, "conditionNotMet", b"x")
    assert local.ask("PUT", local.begin("a"), b"z").status == 200
    second = local.ask("GET", f"{OBJECTS}/a").json["generation"]
    assert int(second) > int(first)
    patch = {"metadata": {"k": "v"}}
    table = [
        ("GET", f"{OBJECTS}/a?ifGenerationMatch={second}", b"", 200),
        ("GET", f"{OBJECTS}/a?ifGenerationMatch={first}", b"", 412),
        ("GET", f"{OBJECTS}/a?ifGenerationNotMatch={second}", b"", 304),
        ("GET", f"{OBJECTS}/a?alt=media&ifMetagenerationNotMatch=1", b"", 304),
        ("GET", f"{OBJECTS}/a?generation={first}", b"", 404),
        ("GET", f"/data/a?generation={second}", b"", 200),
        ("POST", f"{UPLOAD}resumable&name=a&ifGenerationMatch=0", b"", 412),
        ("PATCH", f"{OBJECTS}/a?ifMetagenerationMatch=2", patch, 412),
        ("PATCH", f"{OBJECTS}/a?ifMetagenerationMatch=1", patch, 200),
        ("POST", f"{OBJECTS}/a/rewriteTo/b/other/o/b?ifSourceGenerationMatch={first}", b"", 412),
        ("POST", f"{OBJECTS}/a/rewriteTo/b/other/o/b?ifGenerationMatch=0", b"", 200),
        ("POST", f"{OBJECTS}/a/copyTo/b/other/o/b?ifGenerationMatch=0", b"", 412),
        ("DELETE", f"{OBJECTS}/a?ifGenerationMatch={first}", b"", 412),
        ("DELETE", f"{OBJECTS}/a?ifGenerationMatch=nine", b"", 400),
        ("DELETE", f"{OBJECTS}/a?ifGenerationMatch={second}&ifMetagenerationMatch=2", b"", 204),
        ("DELETE", f"{OBJECTS}/a", b"", 404),
    ]
    found = [(method, target, local.ask(method, target, body).status) for method, target, body, _ in table]
    assert found == [(method, target, status) for method, target, _, status in table]
    upload = local.begin("late", "&ifGenerationMatch=0")
    local.put("late")
    assert local.ask("PUT", upload, b"too late").status == 412


def test_listing_has_pages_prefixes_and_bounds(local: Local) -> None:
    names = ["a", "a/", "a//b", "a/1", "a/2/x", "a/2/y", "a/3", "b/c/d", "b/é", "b/\U0001f600", "c"]
    for name in reversed(names):
        local.put(name)
    assert names == sorted(names, key=str.encode)
    assert local.listed("") == (names, [], "")
    assert local.listed("prefix=a/&delimiter=/") == (["a/", "a/1", "a/3"], ["a//", "a/2/"], "")
    assert local.listed("delimiter=/") == (["a", "c"], ["a/", "b/"], "")
    for true in ("true", "True"):  # the second by Google's own client
        trailing = local.listed(f"delimiter=/&includeTrailingDelimiter={true}")
        assert trailing == (["a", "a/", "c"], ["a/", "b/"], "")
        assert local.listed(f"softDeleted={true}") == ([], [], "")
    assert local.listed("startOffset=a/2/y&endOffset=b/%C3%A9") == (["a/2/y", "a/3", "b/c/d"], [], "")
    assert local.listed("prefix=b&endOffset=b/d") == (["b/c/d"], [], "")
    for query in ("", "prefix=a/&delimiter=/&", "delimiter=/&"):
        for most in (1, 2, 3):
            items, prefixes, token = local.listed(f"{query}maxResults={most}")
            while token:
                page = local.listed(f"{query}maxResults={most}&pageToken={quote(token)}")
                assert 1 <= len(page[0]) + len(page[1]) <= most
                items, prefixes, token = items + page[0], prefixes + page[1], page[2]
            assert (items, prefixes, "") == local.listed(query)
    assert local.ask("GET", f"{OBJECTS}?pageToken=%25").status == 400


def test_listing_of_directories_reads_little_of_what_is_in_them(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(400):
        local.put(f"{number // 20:02}/{number}")
    record = Mock(wraps=object_store._record)
    monkeypatch.setattr(object_store, "_record", record)
    assert local.listed("delimiter=/") == ([], [f"{number:02}/" for number in range(20)], "")
    assert record.call_count < 50


def test_too_much_is_not_said_of_an_object_or_a_bucket(local: Local) -> None:
    """All of it is in each listing, which is in memory as a whole."""
    local.put("a")
    for method, target, body in (
        ("PATCH", f"{OBJECTS}/a", {"metadata": {"x": "y" * 8192}}),
        ("PATCH", "/storage/v1/b/data", {"labels": {"x": "y" * 8192}}),
        ("POST", "/storage/v1/b", {"name": "made", "lifecycle": [{}] * 8192}),
    ):
        reply = local.ask(method, target, body)
        assert (reply.status, "may have 8192 bytes" in reply.json["error"]["message"]) == (400, True)
    assert local.ask("PATCH", f"{OBJECTS}/a", {"metadata": {"x": "y" * 8000}}).status == 200


def test_content_is_answered_in_ranges_and_by_plain_paths(local: Local) -> None:
    made = local.put("d/x y", b"0123456789", Content_Type="text/csv").json
    assert local.ask("GET", "/data/d%2Fx%20y").body == local.ask("GET", "/data/d/x%20y").body == b"0123456789"
    for text, status, body, answered in (
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=8-100", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-20", 416, b"", "bytes */10"),
        ("bytes=5-2", 200, b"0123456789", ""),
        ("lines=1-2", 200, b"0123456789", ""),
    ):
        for path in (f"{OBJECTS}/d%2Fx%20y?alt=media", "/data/d/x%20y", urlsplit(made["mediaLink"]).path):
            reply = local.ask("GET", path, Range=text)
            assert (reply.status, reply.body) == (status, body), (text, path)
            assert reply.headers.get("content-range", "") == answered
    headers = local.ask("GET", "/data/d/x%20y").headers
    assert headers["x-goog-hash"] == f"crc32c={made['crc32c']},md5={made['md5Hash']}"
    assert headers["x-goog-generation"] == made["generation"]
    assert headers["content-type"] == "text/csv"
    missing = local.ask("GET", "/data/none")
    assert (missing.status, b"<Code>NoSuchKey</Code>" in missing.body) == (404, True)
    assert local.ask("PUT", "/data/plain", b"put", Content_Type="text/plain").status == 200
    assert local.get("plain").body == b"put"
    local.put("empty", b"")
    assert local.get("empty").status == 200
    assert local.ask("GET", "/data/empty", Range="bytes=0-9").status == 416


def test_objects_are_composed_copied_and_described(local: Local) -> None:
    local.put("a", b"one ", Content_Type="text/plain")
    local.put("b", b"two")
    sources = {"sourceObjects": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}
    whole = local.ask("POST", f"{OBJECTS}/whole/compose", sources).json
    assert (whole["componentCount"], whole["contentType"], "md5Hash" in whole) == (3, "text/plain", False)
    assert (local.get("whole").body, whole["crc32c"]) == (b"one twoone ", _crc(b"one twoone "))
    assert local.ask("POST", f"{OBJECTS}/whole/compose", {"sourceObjects": [{"name": "none"}]}).status == 404
    patch = {"metadata": {"x": "1", "y": "2"}, "cacheControl": "no-store"}
    assert local.ask("PATCH", f"{OBJECTS}/whole", patch).json["metadata"] == {"x": "1", "y": "2"}
    kept = local.ask("PATCH", f"{OBJECTS}/whole", {"metadata": {"x": None}, "contentType": "text/csv"}).json
    assert (kept["metadata"], kept["cacheControl"], kept["metageneration"]) == ({"y": "2"}, "no-store", "3")
    moved = local.ask("POST", f"{OBJECTS}/whole/rewriteTo/b/made/o/x%2Fy", {"metadata": {"z": "3"}}).json
    assert (moved["done"], moved["objectSize"], moved["resource"]["bucket"]) == (True, "11", "made")
    assert (moved["resource"]["metadata"], moved["resource"]["contentType"]) == ({"z": "3"}, "text/csv")
    local.ask("DELETE", f"{OBJECTS}/whole")
    assert local.ask("GET", "/made/x/y").body == b"one twoone "
    replaced = local.ask("PUT", f"{OBJECTS}/b", {"contentType": "image/png"}).json
    assert (replaced["contentType"], "metadata" in replaced) == ("image/png", False)
    selected = local.ask("GET", f"{OBJECTS}?fields=items(name,size),nextPageToken&prettyPrint=false")
    assert selected.body == b'{"items":[{"name":"a","size":"4"},{"name":"b","size":"3"}]}'
    assert local.ask("PATCH", f"{OBJECTS}/a", {"metadata": {"x": 1}}).status == 400


def test_buckets_are_there_when_they_are_used(local: Local) -> None:
    assert local.ask("GET", "/storage/v1/b").json == {"kind": "storage#buckets"}
    assert local.ask("GET", "/storage/v1/b/later").json["name"] == "later"
    assert local.ask("GET", "/storage/v1/b/later/o").json == {"kind": "storage#objects"}
    local.put("first")
    assert local.ask("POST", "/storage/v1/b?project=p", {"name": "made", "location": "EU"}).json["location"] == "EU"
    assert local.ask("POST", "/storage/v1/b", {"name": "data"}).reason == "conflict"
    listed = local.ask("GET", "/storage/v1/b?maxResults=1").json
    assert [bucket["name"] for bucket in listed["items"]] == ["data"]
    rest = local.ask("GET", f"/storage/v1/b?pageToken={listed['nextPageToken']}").json
    assert [bucket["name"] for bucket in rest["items"]] == ["made"]
    assert [local.ask("DELETE", f"/storage/v1/b/{name}").status for name in ("data", "made", "made")] == [409, 204, 404]
    layout = local.ask("GET", "/storage/v1/b/data/storageLayout").json
    assert layout["hierarchicalNamespace"] == {"enabled": False}
    folders = local.ask("GET", "/storage/v1/b/data/managedFolders").json
    assert folders == {"kind": "storage#managedFolders"}  # `gcloud storage rm -r` of a bucket asks


def test_policy_of_a_bucket_cannot_be_set(local: Local) -> None:
    answer = local.ask("PUT", "/storage/v1/b/data/iam", {"bindings": []})
    assert (answer.status, answer.reason) == (403, "forbidden")
    assert "setIamPolicy' denied on resource" in answer.json["error"]["message"]


def test_store_keeps_what_was_answered_and_nothing_else(local: Local) -> None:
    """The remains of an interrupted process are removed by the next one; objects and uploads stay."""
    local.put("x", b"content")
    local.put("x", b"another", "&ifGenerationMatch=0")
    local.put("x/y", b"below")
    at = local.begin("half")
    local.ask("PUT", at, b"half", Content_Range="bytes 0-3/8")
    store = local.directory / "_store"
    (store / "drafts" / "left").write_bytes(b"half a body")
    orphan = store / "objects" / "ab" / "abcd"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"not named yet")
    local.api.close()
    again = Local(local.directory)
    local.api = again.api
    assert [again.get(name).body for name in ("x", "x/y")] == [b"content", b"below"]
    assert again.ask("PUT", at, b"half", Content_Range="bytes 4-7/8").json["size"] == "8"
    files = [path for path in store.rglob("*") if path.is_file() and path.name not in ("lock", "objects.db")]
    assert len([path for path in files if not path.name.startswith("objects.db-")]) == 3
    with pytest.raises(OSError):
        StorageApi(local.directory)


def test_database_without_room_refuses_and_goes_on(local: Local) -> None:
    def pages(most: int) -> None:
        local.api.store._database.execute(f"PRAGMA max_page_count = {most}")

    pages(1)  # which SQLite reads as those that there are
    statuses = [local.put(f"{number:04}" * 200).status for number in range(30)]
    assert (statuses[0], statuses[-1], set(statuses)) == (200, 507, {200, 507})
    assert local.ask("GET", f"{OBJECTS}/{'0000' * 200}").status == 200
    pages(10_000)
    assert local.put("after").status == 200


def test_upload_for_which_the_disk_is_too_full_is_refused_and_leaves_nothing(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills while an upload is received or written, by others too. What frees some of it goes on."""
    local.put("x", bytes(3 << 20))
    local.put("y", bytes(3 << 20))
    at = local.begin("resumed")
    store = local.directory / "_store"
    looks: Iterator[int] = iter(())

    def disk_usage(_path: Path) -> Any:
        return Mock(free=next(looks, 0))

    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    described = b'--b\r\n\r\n{"name": "new"}\r\n--b\r\n\r\n' + bytes(4 << 20) + b"\r\n--b--"
    related = {"Content_Type": "multipart/related; boundary=b"}
    composed = {"sourceObjects": [{"name": "x"}, {"name": "y"}]}
    calls: dict[str, Callable[[], Reply]] = {
        "media": lambda: local.put("new", bytes(1000)),
        "plain": lambda: local.ask("PUT", "/data/new", b"x"),
        "multipart": lambda: local.ask("POST", f"{UPLOAD}multipart", described, **related),
        "compose": lambda: local.ask("POST", f"{OBJECTS}/new/compose", composed),
        "resumed": lambda: local.ask("PUT", at, bytes(1000), Content_Range="bytes 0-999/9999"),
        "whole": lambda: local.ask("PUT", at, bytes(1000), Content_Range="bytes 0-999/1000"),
    }
    enough = 1 << 40
    for name, call in calls.items():
        for number in range(3):
            # The body itself is in memory, or a file, before the storage is asked.
            looks = iter([enough] * (4 if name == "multipart" else 0) + [enough] * number)
            answer = call()
            if answer.status not in (200, 308):
                assert (answer.status, b"Free some space" in answer.body) == (507, True), (name, number)
                assert [path.name for path in (store / "drafts").iterdir()] == []
                assert local.listed("")[0] == ["x", "y"], (name, number)
                continue
            assert number, f"{name} does not look at the disk"
            looks = iter([enough] * 99)
            local.ask("DELETE", f"{OBJECTS}/new")
            local.ask("DELETE", f"{OBJECTS}/resumed")
            at = local.begin("resumed")
    assert local.ask("DELETE", f"{OBJECTS}/x").status == 204
    assert len([path for path in (store / "objects").rglob("*") if path.is_file()]) == 1
    (there := store / "uploads" / "there").write_bytes(b"takes no more of the disk")
    with local.api.store.drafting() as draft:
        draft.adopt(there)
        assert local.api.store.put("data", "adopted", draft, {}, Conditions()).size == 25


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _crc(content: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()  # type: ignore[no-untyped-call]
