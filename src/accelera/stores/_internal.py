"""Names of this package for the other packages of Accelera; not part of the public interface."""

from accelera._native import STAGING_BYTES_PER_THREAD
from accelera.stores.array import ArrayStore, has_whole_strides, plain_array
from accelera.stores.contract import Layout, OutputStore
from accelera.stores.dtypes import parse_dtype
from accelera.stores.flatfile import FlatFile, Placement
from accelera.stores.foreign import is_foreign, is_sparse
from accelera.stores.formats import Source, known_suffixes, load_format, partial_path
from accelera.stores.joined import JoinedStore, joined_shape
from accelera.stores.mapped import is_mapped
from accelera.stores.opening import (
    create_store,
    is_tensor,
    open_result,
    output_scratch_bytes,
    remove_leftovers,
    result_path,
)
from accelera.stores.regions import Region, check_shape, inner_region, region_shape, whole
from accelera.stores.safetensors import TensorEntry, tensor_entries
from accelera.stores.scratch import disk_folder, is_in_memory
from accelera.stores.sharing import Address, address_of, join_output
from accelera.stores.viewing import Viewing

__all__ = [
    "STAGING_BYTES_PER_THREAD",
    "Address",
    "ArrayStore",
    "FlatFile",
    "JoinedStore",
    "Layout",
    "OutputStore",
    "Placement",
    "Region",
    "Source",
    "TensorEntry",
    "Viewing",
    "address_of",
    "check_shape",
    "create_store",
    "disk_folder",
    "has_whole_strides",
    "inner_region",
    "is_foreign",
    "is_in_memory",
    "is_mapped",
    "is_sparse",
    "is_tensor",
    "join_output",
    "joined_shape",
    "known_suffixes",
    "load_format",
    "open_result",
    "output_scratch_bytes",
    "parse_dtype",
    "partial_path",
    "plain_array",
    "region_shape",
    "remove_leftovers",
    "result_path",
    "tensor_entries",
    "whole",
]
