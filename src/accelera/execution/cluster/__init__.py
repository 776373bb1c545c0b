"""Batches of work on the nodes of a cluster: leases handed out, parts brought back, lost ones done again."""
