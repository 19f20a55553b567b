"""Modules that hold, change and call again values that one module cannot hold for many members."""
