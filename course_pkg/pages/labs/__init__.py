"""What runs in the reader's browser, with nothing but Python's standard library."""
