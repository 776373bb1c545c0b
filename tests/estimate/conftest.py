"""One thread for torch: these tests run many small operators, and threads only wait for each other."""

from tests.interceptor.conftest import _one_thread

__all__ = ["_one_thread"]
