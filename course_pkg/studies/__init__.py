"""What only pages and experiments use, by page."""
