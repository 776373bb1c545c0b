"""What runs on a node of a cluster: an agent, the lease that it works on, and its marks. Knows no Ray."""
