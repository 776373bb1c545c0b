"""A batch of work on its way: what is pending, who takes it, what has come of it."""
