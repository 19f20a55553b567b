"""Models of packages that no test uses; see `__main__`."""
