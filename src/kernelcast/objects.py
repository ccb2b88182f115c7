"""Large blobs in an object store of the S3 protocol, each under the hash of its content."""

from __future__ import annotations

from typing import Any

from kernelcast.errors import StoreError


class Objects:
    """A bucket, or a part of one: `s3://bucket/prefix`.

    Credentials and endpoint come from the usual places of AWS: its files, or environment variables
    such as `AWS_ENDPOINT_URL`.
    """

    def __init__(self, url: str) -> None:
        scheme, _, place = url.partition("://")
        self._bucket, _, prefix = place.partition("/")
        if scheme != "s3" or not self._bucket:
            raise StoreError(f"{url!r} names no bucket: write s3://bucket/prefix")
        try:
            import boto3
            from botocore.exceptions import BotoCoreError, ClientError
        except ModuleNotFoundError as error:
            raise StoreError(f"{url} needs boto3: pip install 'kernelcast[s3]'") from error
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._errors = (BotoCoreError, ClientError)
        try:
            self._client = boto3.client("s3")
        except self._errors as error:
            raise self._unreachable(error) from error

    def put(self, key: str, data: bytes) -> None:
        """Write an object; it is durable on return.

        Raises:
            StoreError: The bucket cannot be written.
        """
        try:
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data)
        except self._errors as error:
            raise self._unreachable(error) from error

    def get(self, key: str) -> bytes:
        """Return an object as it was written.

        Raises:
            StoreError: The object is missing, or the bucket cannot be read.
        """
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            data: bytes = answer["Body"].read()
        except self._client.exceptions.NoSuchKey as error:
            raise StoreError(
                f"the object {self._shown(key)} is missing: name the bucket that the store was "
                "written with (KERNELCAST_BLOBS), or restore the bucket from a backup"
            ) from error
        except self._errors as error:
            raise self._unreachable(error) from error
        return data

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _shown(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def _unreachable(self, error: Any) -> StoreError:
        return StoreError(
            f"the bucket {self._shown('')} cannot be used ({error}): check that it exists, the "
            "AWS credentials, AWS_DEFAULT_REGION and AWS_ENDPOINT_URL"
        )
