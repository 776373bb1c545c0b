"""Where matrix bytes live: RAM, accelerators and files, behind one contract.

``open_store`` gives any operand as a ``Store``; ``create_store`` begins a result as an ``OutputStore``.
"""

from __future__ import annotations

from accelera._native import STAGING_BYTES_PER_THREAD
from accelera.stores.array import ArrayOutput, ArrayStore
from accelera.stores.contract import Layout, OutputStore, Store, StoreView
from accelera.stores.dtypes import BFLOAT16, parse_dtype
from accelera.stores.flatfile import FlatFile, Placement
from accelera.stores.flatoutput import FlatOutput
from accelera.stores.formats import (
    Source,
    Target,
    known_suffixes,
    load_format,
    partial_path,
    register_format,
)
from accelera.stores.opening import (
    create_store,
    open_store,
    output_scratch_bytes,
    remove_leftovers,
    split_key,
)
from accelera.stores.regions import Region, region_shape, whole
from accelera.stores.safetensors import TensorEntry, tensor_entries
from accelera.stores.sharing import Address, address_of, join_output

__all__ = [
    "BFLOAT16",
    "STAGING_BYTES_PER_THREAD",
    "Address",
    "ArrayOutput",
    "ArrayStore",
    "FlatFile",
    "FlatOutput",
    "Layout",
    "OutputStore",
    "Placement",
    "Region",
    "Source",
    "Store",
    "StoreView",
    "Target",
    "TensorEntry",
    "address_of",
    "create_store",
    "join_output",
    "known_suffixes",
    "load_format",
    "open_store",
    "output_scratch_bytes",
    "parse_dtype",
    "partial_path",
    "region_shape",
    "register_format",
    "remove_leftovers",
    "split_key",
    "tensor_entries",
    "whole",
]
