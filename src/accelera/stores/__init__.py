"""Stores of arrays: RAM, accelerators and files, behind one contract.

``open_store`` gives any operand as a ``Store``; results are created by ``out=`` of an engine.
"""

from accelera.stores.contract import Store
from accelera.stores.formats import register_format
from accelera.stores.opening import open_store

__all__ = [
    "Store",
    "open_store",
    "register_format",
]
