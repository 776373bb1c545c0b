"""Attention within a budget: scores are computed tile by tile, forward and backward, and never kept whole."""
