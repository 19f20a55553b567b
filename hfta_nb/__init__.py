"""Train many variants of a model as one: horizontally fused training arrays, from a notebook."""

__version__ = "0.1.0"
