"""Rows of the table `tests/contract/handed_over.py`: a file for each kind of thing that a user hands over."""
