"""Torch modules bigger than their device: weights, gradients and states stream through the buffer pool."""
