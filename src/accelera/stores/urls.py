"""URLs of stores: recognized, split into address and array name, and written without secrets in messages."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from accelera.errors import StoreError, StoreFormatError, UnknownNameError
from accelera.stores.formats import Source, known_suffixes, module_of

_SCHEME = r"[A-Za-z][A-Za-z0-9+.\-]+"
_URL = re.compile(rf"(?:{_SCHEME}::)*{_SCHEME}://")
_CHAIN = re.compile(rf"^(?:{_SCHEME}::)*")
_NEXT = re.compile(rf"::(?=(?:{_SCHEME}::)*{_SCHEME}://)")
_USER = re.compile(r"://[^/@\s]*@")
_LOCAL = ("file://", "local://")
_QUERY = re.compile(r"(https?://[^\s'\"?#]*)[?#][^\s'\",)]*", re.IGNORECASE)
_WITH_QUERY = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True)
class Url:
    """Address of a file that ``fsspec`` opens."""

    address: str
    """The URL without the name of an array, as ``fsspec`` takes it."""
    key: str | None = None
    """Name of one array of a file or group that holds several."""

    @property
    def name(self) -> str:
        """The address without user, password and query, which may hold secrets."""
        return _USER.sub("://", _without_query(self.address))

    @property
    def suffix(self) -> str:
        """Suffix of the file's name, in lower case."""
        place = _NEXT.split(_CHAIN.sub("", _without_query(self.address)))[0]
        return PurePosixPath(place.partition("://")[2]).suffix.lower()

    @property
    def local_path(self) -> str | None:
        """The path that a ``file://`` URL names; None for other protocols."""
        prefix = next((each for each in _LOCAL if self.address.startswith(each)), None)
        return None if prefix is None else self.address[len(prefix) :]


def is_url(text: str) -> bool:
    """Return whether a text starts with a protocol, or a chain of them: ``zip://A.npy::https://…``."""
    return _URL.match(text) is not None


def parse_url(text: str, key: str | None = None) -> Url:
    """Return the URL and the array in ``"https://…/model.safetensors::name"``.

    Raises StoreFormatError when ``key`` names another array, and for control characters.
    """
    if any(ord(letter) < 32 for letter in text):
        raise StoreFormatError(f"[open_store] {text!r} holds control characters; give a URL without them")
    address, mark, name = text.rpartition("::")
    if not mark or "://" in name or not is_url(address) or not Url(address).suffix:  # [::1] is an address
        return Url(text, key)
    if key not in (None, name):
        raise StoreFormatError(
            f"[open_store] {Url(address).name} names {name!r}, key={key!r} another array; give one of them"
        )
    return Url(address, name)


def open_url(url: Url, source: Source) -> Any:
    """Return the store of a file that is read over the network, range by range.

    Raises UnknownNameError for an unknown suffix and StoreError for a format that needs a local file.
    """
    module_name = module_of(url.suffix)
    if module_name is None:
        raise UnknownNameError.among("file format", url.suffix or url.name, known_suffixes())
    open_remote = getattr(importlib.import_module(module_name), "open_remote", None)
    if open_remote is None:
        raise StoreError(
            f"[open_store] {url.name}: {url.suffix} files are read from a local disk only; download it "
            "first, or convert it to .npy, .safetensors or .zarr"
        )
    return open_remote(url, source)


def refuse_url_result(text: str) -> None:
    """Raise StoreError for a result that would be written over the network."""
    if is_url(text):
        url = parse_url(text)
        remedy = "give the path without file://" if url.local_path else "give a path, and upload the result"
        raise StoreError(f"[out] {url.name}: URLs are read, never written; {remedy}")


def without_secrets(text: str) -> str:
    """Return a text with users, passwords and queries removed from the URLs in it."""
    return _USER.sub("://", _QUERY.sub(r"\1", text))


def _without_query(address: str) -> str:
    """Return an address without the query and fragment that HTTP URLs have."""
    return address.partition("?")[0].partition("#")[0] if _WITH_QUERY.search(address) else address
