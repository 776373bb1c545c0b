"""The machine: what it has, how busy it is, and the share of its cores that is ours."""
