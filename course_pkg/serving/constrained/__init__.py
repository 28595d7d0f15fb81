"""Output that must match a regular expression or a JSON Schema: masks over a model's tokens."""
