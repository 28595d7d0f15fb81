"""Page: deployment/compression."""
