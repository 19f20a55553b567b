"""Typical code of a PyTorch user in the first hour."""
