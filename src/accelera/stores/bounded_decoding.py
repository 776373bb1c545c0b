"""Zarr arrays whose chunks are decoded within a bound: a few kilobytes can state gigabytes ("zip bombs").

The codecs of an array are replaced by ones that refuse a chunk that would decode to more than its shape
takes, before the memory is allocated. Formats that state their size (Zstandard, Blosc, LZ4) are refused by
their header; streams that do not (gzip, zlib, bzip2, LZMA) are decoded here up to the bound.
"""

from __future__ import annotations

import asyncio
import bz2
import copy
import dataclasses
import functools
import lzma
import math
import zlib
from collections.abc import Callable
from typing import Any, Final

from accelera.errors import ArgumentError, StoreFormatError

_SLACK_BYTES: Final = 1024
"""Bytes that a checksum codec may add to a chunk before it is compressed."""
_FILTER_GROWTH: Final = 8
"""Most bytes per byte of a chunk after filters of format 2, which may widen its elements."""
_ZSTD_BLOCK_BYTES: Final = 128 << 10
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_AUTOMATIC_HEADER: Final = 47
"""``wbits`` of zlib that accepts zlib's and gzip's headers."""


class DecodedSizeError(StoreFormatError):
    """A chunk would decode to more bytes than the array's chunk shape takes."""


def bound_decoding(array: Any) -> Any:
    """Return an array of the ``zarr`` package over the same store whose chunks decode within a bound."""
    bounded = copy.copy(array._async_array)
    object.__setattr__(
        bounded, "codec_pipeline", _bounded_pipeline(bounded.metadata, bounded.store_path.store)
    )
    return type(array)(bounded)


def _bounded_pipeline(metadata: Any, store: Any) -> Any:
    from zarr.core.array import create_codec_pipeline

    if metadata.zarr_format == 3:
        codecs = tuple(map(_bounded_codec, metadata.codecs))
        return create_codec_pipeline(dataclasses.replace(metadata, codecs=codecs), store=store)
    pipeline: Any = create_codec_pipeline(metadata, store=store)
    limit = math.prod(metadata.chunks) * metadata.dtype.to_native_dtype().itemsize
    limit = limit * (_FILTER_GROWTH if metadata.filters else 1) + _SLACK_BYTES
    codec = dataclasses.replace(
        pipeline.array_bytes_codec,
        filters=metadata.filters and tuple(_BoundedNumcodec(each, limit) for each in metadata.filters),
        compressor=metadata.compressor and _BoundedNumcodec(metadata.compressor, limit),
    )
    return dataclasses.replace(pipeline, array_bytes_codec=codec)


def _bounded_codec(codec: Any) -> Any:
    """Return a codec of format 3 that refuses chunks of too many bytes; others as they are."""
    from zarr.abc.codec import BytesBytesCodec
    from zarr.codecs import ShardingCodec

    if isinstance(codec, ShardingCodec):
        return dataclasses.replace(codec, codecs=tuple(map(_bounded_codec, codec.codecs)))
    if not isinstance(codec, BytesBytesCodec):
        return codec
    kind: Any = type(codec)
    bounded = copy.copy(codec)
    object.__setattr__(bounded, "__class__", _bounded_class(kind))
    return bounded


@functools.cache
def _bounded_class(kind: type) -> type:
    return type(kind.__name__, (_BoundedDecoding, kind), {})


class _BoundedDecoding:
    """Mixed into a codec of the library before its own class."""

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        dtype = chunk_spec.dtype.to_native_dtype()
        limit = math.prod(chunk_spec.shape) * dtype.itemsize + _SLACK_BYTES
        described: Any = self
        name = described.to_dict()["name"].removeprefix("numcodecs.")
        data = memoryview(chunk_bytes.as_numpy_array()).cast("B")
        decoded = await asyncio.to_thread(decode_within, name, data, limit, described)
        if decoded is not None:
            return chunk_spec.prototype.buffer.from_bytes(decoded)
        library: Any = super()
        return await library._decode_single(chunk_bytes, chunk_spec)


class _BoundedNumcodec:
    """A codec of format 2; its other attributes are those of the library's codec."""

    def __init__(self, codec: Any, limit: int) -> None:
        self._codec, self._limit = codec, limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def decode(self, data: Any, out: Any = None) -> Any:
        if not isinstance(data, bytes | bytearray | memoryview) and not hasattr(data, "__buffer__"):
            data = memoryview(data)
        decoded = decode_within(self._codec.codec_id, memoryview(data).cast("B"), self._limit, self._codec)
        return self._codec.decode(data, out) if decoded is None else decoded


def decode_within(name: str, data: memoryview, limit: int, codec: Any = None) -> bytes | None:
    """Return the decoded bytes of a stream; None when the library may decode ``data`` within the limit.

    Raises DecodedSizeError when more than ``limit`` bytes would result.
    """
    if name in _STREAMS:
        return _decoded_stream(_STREAMS[name](codec), data, limit, name)
    size = _STATED_SIZES[name](data) if name in _STATED_SIZES else 0
    if size > limit:
        raise _too_large(name, limit, size)
    return None


def _decoded_stream(make: Callable[[], Any], data: memoryview, limit: int, name: str) -> bytes:
    """Decode concatenated streams; ``make`` returns a fresh decompressor of one."""
    parts, size, rest = list[bytes](), 0, data
    while rest:
        decompressor = make()
        part = decompressor.decompress(rest, limit + 1 - size)
        parts.append(part)
        size += len(part)
        if size > limit:
            raise _too_large(name, limit)
        if not decompressor.eof:
            raise ArgumentError(f"the {name} stream of a chunk ends early")
        rest = memoryview(decompressor.unused_data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(name: str, limit: int, size: int | None = None) -> DecodedSizeError:
    stated = "more" if size is None else f"{size}"
    return DecodedSizeError(
        f"a chunk of {name} decodes to {stated} bytes, at most {limit} fit its shape: the file is damaged or "
        "malicious"
    )


def _lzma(codec: Any) -> Callable[[], Any]:
    settings = getattr(codec, "codec_config", None) or {
        "format": getattr(codec, "format", lzma.FORMAT_XZ),
        "filters": getattr(codec, "filters", None),
    }
    kind, filters = settings.get("format", lzma.FORMAT_XZ), settings.get("filters")
    raw_filters = filters if kind == lzma.FORMAT_RAW else None
    return lambda: lzma.LZMADecompressor(format=kind, filters=raw_filters)


_STREAMS: Final[dict[str, Callable[[Any], Callable[[], Any]]]] = {
    "gzip": lambda codec: lambda: zlib.decompressobj(_AUTOMATIC_HEADER),
    "zlib": lambda codec: lambda: zlib.decompressobj(_AUTOMATIC_HEADER),
    "bz2": lambda codec: bz2.BZ2Decompressor,
    "lzma": _lzma,
}


def _size_of_zstd(data: memoryview) -> int:
    """Return the size that a Zstandard frame states (RFC 8878), else an upper bound from its blocks."""
    if len(data) < 6 or bytes(data[:4]) != _ZSTD_MAGIC:
        return 0  # the library refuses it
    descriptor = data[4]
    is_single_segment = descriptor >> 5 & 1
    start = 5 + (1 - is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    width = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    if width:
        stated = int.from_bytes(data[start : start + width], "little")
        return stated + 256 if width == 2 else stated
    return _bound_of_zstd_blocks(data, start)


def _bound_of_zstd_blocks(data: memoryview, start: int) -> int:
    bound, is_last = 0, False
    while not is_last and start + 3 <= len(data):
        header = int.from_bytes(data[start : start + 3], "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        bound += size if kind < 2 else min(_ZSTD_BLOCK_BYTES, size * _ZSTD_BLOCK_BYTES)
        start += 3 + (1 if kind == 1 else size)
    # Whole blocks may round a chunk up.
    return max(0, bound - _ZSTD_BLOCK_BYTES)


_STATED_SIZES: Final[dict[str, Callable[[memoryview], int]]] = {
    "zstd": _size_of_zstd,
    "blosc": lambda data: int.from_bytes(data[4:8], "little"),
    "lz4": lambda data: int.from_bytes(data[:4], "little"),
}
