"""METEOR: words aligned by form, stem and synonym."""
