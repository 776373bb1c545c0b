"""What offloading will take, found by a rehearsal on shapes."""
