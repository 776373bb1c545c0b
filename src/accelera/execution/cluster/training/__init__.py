"""Data-parallel training on a cluster: Ray Train runs the ranks, what they need to go on is here."""
