"""Tasks of a batch: the queue, who takes which of them, and how they are run."""
