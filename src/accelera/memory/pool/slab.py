"""Memory of a place that blocks use in turn, and the transfers that it waits for."""

from __future__ import annotations

from typing import Any, final

from accelera.memory.pool.moving import Transfer


@final
class Slab:
    """Memory for one block at a time; it comes into being when earlier memory has been given back."""

    __slots__ = ("loading", "memory", "nbytes", "promised", "saving", "view")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.view: Any = None
        """Its bytes as those who use them see them."""
        self.memory: Any = None
        """The same as its place knows it."""
        self.promised = False
        """Whether its place counts it."""
        self.loading: Transfer | None = None
        self.saving: Transfer | None = None

    @property
    def idle(self) -> bool:
        """Whether it exists and no transfer uses it."""
        loading, saving = self.loading, self.saving
        return self.memory is not None and (not loading or loading.over) and (not saving or saving.done)

    @property
    def exists_or_will(self) -> bool:
        """Whether it exists, or a transfer that is not over may bring it into being."""
        return self.memory is not None or (self.loading is not None and not self.loading.over)

    def wait_loaded(self) -> Any:
        """Return the bytes once they are here; raise what hindered them."""
        loading = self.loading
        if loading is not None:
            loading.wait()
            self.loading = None
        assert self.memory is not None, "what is loaded exists"
        return self.view

    def wait_saved(self) -> None:
        """Return when nobody reads these bytes any more; raise what hinders their saving even now."""
        saving = self.saving
        if saving is not None:
            saving.wait_or_repeat()
