"""Stores of arrays: RAM, accelerators and files, behind one contract.

``open_store`` gives any operand as a ``Store``; ``create_store`` begins a result as an ``OutputStore``.
"""

from accelera.stores.contract import OutputStore, Store
from accelera.stores.formats import register_format
from accelera.stores.opening import create_store, open_store

__all__ = [
    "OutputStore",
    "Store",
    "create_store",
    "open_store",
    "register_format",
]
