"""The package that can be called is a module like others to those who send functions."""

from __future__ import annotations

import pickle

import accelera
import accelera.offload


def test_it_travels_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(accelera.offload)) is accelera.offload
