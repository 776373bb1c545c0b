"""What an operation does with offloaded operands."""
