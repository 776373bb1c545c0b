"""Devices that fail: what kind of failure it is, how small pieces must be, when to leave a device alone."""
