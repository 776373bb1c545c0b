"""Worker processes: the executor, its pool, and what runs in a worker."""
