"""The engine: arrays whose members run as one, and everything below them."""
