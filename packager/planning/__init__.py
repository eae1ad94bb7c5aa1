"""What a run may take, what its steps take, and how training gets what they leave."""
