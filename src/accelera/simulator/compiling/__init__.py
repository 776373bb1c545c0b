"""What a fusing compiler would do."""
