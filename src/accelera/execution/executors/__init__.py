"""Executors: one file each; none knows another."""
