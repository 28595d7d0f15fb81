"""Deployment: an HTTP server with OpenAI's API around the inference engine."""
