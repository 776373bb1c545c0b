"""How long tasks take on each device: measured, kept on disk, and used to predict."""
