"""Worker processes: how they are started, spoken to, and what runs in them."""
