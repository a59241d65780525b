"""Language models on tasks with known answers."""
