"""What is trained: families and recipes, losses, metrics, targets, phases."""
