"""What a run *is*: its configuration, its algorithm, its files."""
