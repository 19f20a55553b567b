"""Modules that hold, change and call again what one module can't hold for many."""
