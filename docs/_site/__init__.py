"""Builds the documentation site: `python -m docs._site`, or `make docs`."""
