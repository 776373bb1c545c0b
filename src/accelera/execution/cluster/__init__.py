"""Batches of work on the nodes of a cluster: leases, and the results that come back in parts."""
