"""What a PyTorch user does in the first hour, each as they would write it."""
