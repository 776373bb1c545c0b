"""Data-parallel training on a cluster by Ray Train."""
