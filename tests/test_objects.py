"""Large sources in a bucket, against a real server of the S3 protocol on loopback."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from kernelcast.errors import StoreError
from kernelcast.objects import Objects
from kernelcast.store import LARGEST_BLOB, Store
from kernelcast.testing import example_history, make_kernel

URL = "s3://kernels/of/tests"
SMALL = make_kernel("void kernel() {}")
LARGE = make_kernel(
    f"// {random.Random(1).randbytes(2 * LARGEST_BLOB).hex()}\nvoid kernel() {{ int large; }}"
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of the server, with an empty bucket; its settings are those of the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    client = boto3.client("s3")
    client.create_bucket(Bucket="kernels")
    yield client
    for key in keys(client):
        client.delete_object(Bucket="kernels", Key=key)
    client.delete_bucket(Bucket="kernels")
    client.close()


def keys(client: Any) -> list[str]:
    return [item["Key"] for item in client.list_objects_v2(Bucket="kernels").get("Contents", [])]


def write(location: str) -> None:
    """Write a run with a small and a large kernel."""
    with Store.open(location, blobs=URL) as store:
        events, kernels = example_history()
        store.create_run("r").append(events, [*kernels, SMALL, LARGE])


def test_only_a_large_source_lies_in_the_bucket(location: str, bucket: Any) -> None:
    write(location)
    (key,) = keys(bucket)
    assert key.startswith("of/tests/")
    with Store.open(location, blobs=URL) as store:
        assert store.kernels([LARGE.id, SMALL.id]) == [LARGE, SMALL]
    with Store.open(location) as store:
        assert store.kernel(SMALL.id) == SMALL
        with pytest.raises(StoreError, match="set KERNELCAST_BLOBS"):
            store.kernel(LARGE.id)


def test_the_environment_names_the_bucket(
    location: str, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(location)
    monkeypatch.setenv("KERNELCAST_BLOBS", URL)
    with Store.open(location) as store:
        assert store.kernel(LARGE.id) == LARGE


def test_without_a_bucket_all_lies_in_the_database(location: str) -> None:
    with Store.open(location) as store:
        events, kernels = example_history()
        store.create_run("r").append(events, [*kernels, LARGE])
        assert store.kernel(LARGE.id) == LARGE


def test_a_missing_or_changed_object_is_found(location: str, bucket: Any) -> None:
    write(location)
    (key,) = keys(bucket)
    with Store.open(location, blobs=URL) as store:
        bucket.put_object(Bucket="kernels", Key=key, Body=b"something else")
        with pytest.raises(StoreError, match="damaged"):
            store.kernel(LARGE.id)
        bucket.delete_object(Bucket="kernels", Key=key)
        with pytest.raises(StoreError, match=r"s3://kernels/of/tests/\w+ is missing"):
            store.kernel(LARGE.id)


def test_a_bucket_that_cannot_be_written_leaves_no_row(location: str, bucket: Any) -> None:
    with Store.open(location, blobs="s3://nowhere") as store:
        events, kernels = example_history()
        with pytest.raises(StoreError, match="check that it exists"):
            store.create_run("r").append(events, [*kernels, LARGE])
        assert store.runs() == []


def test_a_wrong_url_and_a_missing_package_name_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("https://bucket", "s3://", "bucket"):
        with pytest.raises(StoreError, match="write s3://bucket/prefix"):
            Objects(url)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(StoreError, match=r"pip install 'kernelcast\[s3\]'"):
        Objects(URL)
