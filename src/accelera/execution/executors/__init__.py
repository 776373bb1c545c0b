"""Those who carry work out: one file each; none knows another."""
