"""Pictures of the documentation, made by code that runs."""
