"""Serving: caches of keys and values, and generation with them."""
