"""Language models and text: `load` and `encoder` (models by name), `datasets` (the course's)."""
