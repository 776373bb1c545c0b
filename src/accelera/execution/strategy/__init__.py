"""Strategies of batches: where they run, what that costs, and what was measured."""
