"""What offloading will take, found by a dry run on shapes."""
