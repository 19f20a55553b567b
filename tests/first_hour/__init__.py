"""The first hour: what a PyTorch user types, as they would type it."""
