"""Files that ``fsspec`` opens: their size and version, and ranges of their bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

from accelera._extras import needed_for, require
from accelera.errors import AcceleraError, BackendMissingError, OutOfMemoryError, StoreError
from accelera.stores.urls import Url, without_secrets

_VERSION_FIELDS = (
    "ETag",
    "etag",
    "Last-Modified",
    "LastModified",
    "last_modified",
    "mtime",
    "created",
    "Content-MD5",
    "md5Hash",
    "generation",
)
"""Facts by which file systems tell versions of a file apart, as ``fsspec`` calls them."""
_HTTP = ("http", "https")


@final
class RemoteFile:
    """A file behind a URL, read by ranges from any thread and in forked processes.

    Raises StoreError when the file cannot be opened, when its size is unknown, and when an HTTP server
    sends whole files only.
    """

    def __init__(self, url: Url) -> None:
        self.url = url
        self.name = url.name
        self._connection = self._connected()
        facts = self._facts()
        if not isinstance(facts.get("size"), int):
            raise StoreError(
                f"[open_store] {self.name}: the server states no size; download the file and give its path"
            )
        self.size: int = facts["size"]
        self.version = _version(facts)
        if self._is_http():
            self._require_ranges(facts)

    def read_at(self, count: int, offset: int = 0) -> bytes:
        """Return ``count`` bytes from ``offset``, or fewer at the end of the file."""
        stop = min(offset + count, self.size)
        return self.read_ranges([(offset, stop)])[0] if offset < stop else b""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of non-empty ranges, pairs of first byte and end; requests may be concurrent.

        Raises StoreError when a request fails or brings another number of bytes.
        """
        filesystem, path = self._filesystem()
        starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
        with self._failures_reported("read"):
            contents = filesystem.cat_ranges([path] * len(ranges), starts, ends, **self._request_options())
        for (start, end), content in zip(ranges, contents, strict=True):
            if isinstance(content, BaseException):
                with self._failures_reported("read"):
                    raise content
            if len(content) != end - start:
                raise StoreError(
                    f"[read] {self.name} at byte {start}: {len(content)} bytes arrived, {end - start} "
                    "expected; the file was cut off since it was opened, or the server ignores ranges"
                )
        return list(contents)

    def current_version(self) -> tuple[int | None, Mapping[str, str]]:
        """Return the size and the version of the file as they are now."""
        facts = self._facts()
        return facts.get("size"), _version(facts)

    def _facts(self) -> Mapping[str, Any]:
        filesystem, path = self._filesystem()
        with self._failures_reported("open_store"):
            filesystem.invalidate_cache(path)
            facts: Mapping[str, Any] = filesystem.info(path)
        if facts.get("type") == "directory":
            raise StoreError(f"[open_store] {self.name} is a folder; give a file")
        return facts

    def _filesystem(self) -> tuple[Any, str]:
        """Return the file system and the path in it; those of a parent process do not work after a fork."""
        process, filesystem, path = self._connection
        if process != os.getpid():
            self._connection = self._connected()
            _, filesystem, path = self._connection
        return filesystem, path

    def _connected(self) -> tuple[int, Any, str]:
        require("open_store", "fsspec", otherwise="or download the file")
        with needed_for("open_store", otherwise="or download the file"):
            from fsspec.core import url_to_fs
        if "http" in self.url.address.partition("://")[0]:
            require("open_store", "aiohttp", otherwise="or download the file")
        try:
            filesystem, path = url_to_fs(self.url.address)
        except ImportError as error:  # the package of a protocol, such as s3fs, is not installed
            raise BackendMissingError(f"[open_store] {self.name}: {error}") from error
        except ValueError as error:
            raise StoreError(
                f"[open_store] {self.name}: {error}; see fsspec.available_protocols()"
            ) from error
        return os.getpid(), filesystem, path

    def _is_http(self) -> bool:
        protocol = self._filesystem()[0].protocol
        return any(name in _HTTP for name in ((protocol,) if isinstance(protocol, str) else protocol))

    def _request_options(self) -> Mapping[str, Any]:
        """Return the options of a request; a compressed answer has other bytes than the range."""
        if not self._is_http():
            return {}
        headers = self._filesystem()[0].kwargs.get("headers", {})
        return {"headers": {**headers, "Accept-Encoding": "identity"}}

    def _require_ranges(self, facts: Mapping[str, Any]) -> None:
        """Raise StoreError for a server without ranges, which would send the whole file for each read."""
        if self.size < 2:
            return
        if facts.get("partial") is False or not self._sends_second_byte():
            raise StoreError(
                f"[open_store] {self.name}: the server sends whole files, ranges of bytes expected; "
                "download the file and give its path"
            )

    def _sends_second_byte(self) -> bool:
        filesystem, path = self._filesystem()
        with self._failures_reported("open_store"):
            try:
                with filesystem.open(path, "rb", size=self.size, cache_type="none") as file:
                    file.seek(1)
                    file.read(1)
            except ValueError:  # as fsspec reports that the answer is the whole file
                return False
        return True

    @contextmanager
    def _failures_reported(self, op: str) -> Iterator[None]:
        """Context in which any error of a file system becomes a StoreError."""
        try:
            yield
        except AcceleraError:
            raise
        except MemoryError as error:
            raise OutOfMemoryError(
                f"[{op}] {self.name}: no memory for the bytes of a request; end other work"
            ) from error
        except Exception as error:  # file systems raise the errors of their libraries
            raise StoreError(f"[{op}] {self.name}: {self._reason(error)}; check the URL") from error

    def _reason(self, error: BaseException) -> str:
        """Return the error's text without secrets of the URL."""
        origin = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
        text = without_secrets(str(origin).replace(self.url.address, self.name))
        if isinstance(origin, FileNotFoundError):
            return "no such file"
        return f"{type(origin).__name__}: {text}" if text else type(origin).__name__


def _version(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(facts[name]) for name in _VERSION_FIELDS if facts.get(name) is not None}
