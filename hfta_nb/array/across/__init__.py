"""Members of different architecture in one array: other widths, depths, activations, rates.

What differs in size is padded with zeros to the largest member, and rules keep the padding out of every number
(`rules/`). What differs otherwise runs in groups of like members (`groups.py`, `unlike.py`).
"""
