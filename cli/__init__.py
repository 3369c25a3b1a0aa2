"""The `dots3` command line."""
