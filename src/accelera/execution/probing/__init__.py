"""What the machine has and how busy it is, asked of the system itself and cheaply."""
