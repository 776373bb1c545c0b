"""What training needs: gradients, saved activations and optimizer states in the pool."""
