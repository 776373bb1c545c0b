"""Attention whose scores never stand in memory whole: tile by tile, forward and backward."""
