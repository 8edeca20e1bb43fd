"""Paths of Google Cloud Storage: the buckets that a call reads and changes are those that its path names."""

from trainyard_protocol.net.storage_calls import parse, parse_at_server


def test_call_reads_and_writes_the_buckets_of_its_path() -> None:
    table = [
        ("GET", "/storage/v1/b", "buckets.list", "", "", ""),
        ("POST", "/storage/v1/b", "buckets.insert", "", "", ""),
        ("GET", "/storage/v1/b/one", "buckets.get", "one", "", ""),
        ("DELETE", "/storage/v1/b/one", "buckets.delete", "", "one", ""),
        ("GET", "/storage/v1/b/one/o", "objects.list", "one", "", ""),
        ("GET", "/storage/v1/b/one/storageLayout", "buckets.detail", "one", "", ""),
        ("GET", "/storage/v1/b/one/iam", "buckets.detail", "one", "", ""),
        ("PUT", "/storage/v1/b/one/iam", "buckets.setIamPolicy", "", "one", ""),
        ("GET", "/storage/v1/b/one/o/a%2Fb%20c", "objects.get", "one", "", "a/b c"),
        ("HEAD", "/storage/v1/b/one/o/a/b", "objects.get", "one", "", "a/b"),
        ("PATCH", "/storage/v1/b/one/o/a", "objects.update", "", "one", "a"),
        ("POST", "/storage/v1/b/one/o/a%2Fcompose/compose", "objects.compose", "", "one", "a/compose"),
        ("POST", "/storage/v1/b/one/o/a/copyTo/b/two/o/c", "objects.copy", "one", "two", "a"),
        ("POST", "/storage/v1/b/one/o/a%2Fx/rewriteTo/b/two/o/c%2Fd", "objects.rewrite", "one", "two", "a/x"),
        ("GET", "/storage/v1/b/one/o/a%2FrewriteTo%2Fb%2Ftwo", "objects.get", "one", "", "a/rewriteTo/b/two"),
        ("GET", "/download/storage/v1/b/one/o/a", "objects.download", "one", "", "a"),
        ("PUT", "/upload/storage/v1/b/one/o", "objects.insert", "", "one", ""),
        ("DELETE", "/resumable/upload/storage/v1/b/one/o", "objects.insert", "", "one", ""),
        ("GET", "/one/a/b%20c", "plain.get", "one", "", "a/b c"),
        ("PUT", "/one/a", "plain.put", "", "one", "a"),
        ("PUT", "/batch/a", "plain.put", "", "batch", "a"),
        ("GET", "/batches/a", "plain.get", "batches", "", "a"),
        ("POST", "/batch/storage/v1", "batch", "", "", ""),
        ("DELETE", "/storage/v1%2Fb%2Fone", "plain.delete", "", "storage", "v1/b/one"),
    ]
    for method, path, kind, reads, writes, name in table:
        call = parse(method, path)
        assert call is not None, path
        assert (call.kind, call.reads, call.writes, call.name) == (kind, reads, writes, name), path


def test_server_has_plain_paths_below_one_of_its_own_alone() -> None:
    call = parse_at_server("DELETE", "/storage/plain/storage/v1/b/one")
    assert call is not None
    assert (call.kind, call.bucket, call.name) == ("plain.delete", "storage", "v1/b/one")
    assert (call.path, call.path_at_server) == ("/storage/v1%2Fb%2Fone", "/storage/plain/storage/v1%2Fb%2Fone")
    for method, path in (
        ("GET", "/one/a"),
        ("POST", "/batch/storage/v1"),
        ("POST", "/storage/plain/batch/storage"),
        ("GET", "/%73torage/plain/one/a"),
        ("GET", "/storage/plain/../one/a"),
    ):
        assert parse_at_server(method, path) is None, path


def test_other_paths_are_no_calls() -> None:
    for method, path in (
        ("PUT", "/storage/v1/b"),
        ("GET", "/storage/v1/b/"),
        ("GET", "/storage/v1/b/one/acl"),
        ("POST", "/storage/v1/b/one/iam"),
        ("POST", "/storage/v1/b/one/o/a/rewriteTo/b/two/o/c/d"),
        ("POST", "/storage/v1/b/one/o/a/rewriteTo/b//o/c"),
        ("POST", "/download/storage/v1/b/one/o/a/compose"),
        ("GET", "/download/storage/v1/b/one"),
        ("GET", "/upload/storage/v1/b/one/o"),
        ("GET", "/storage/v1/b/one/o/x/../../../two/o/x"),
        ("GET", "/storage/v1/b/one/o/%2E%2E/x"),
        ("POST", "/one/a"),
        ("POST", "/batches/a"),
        ("GET", "/one/"),
        ("GET", "/one"),
    ):
        assert parse(method, path) is None, path
