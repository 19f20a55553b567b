"""Models of packages that the tests have never seen; see `__main__`."""
