"""What runs in the reader's browser: cells of pages, playgrounds and exercises.

Everything here needs nothing but Python's standard library. Chapter: labs.
"""
