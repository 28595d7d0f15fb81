"""Language models and text: `load` (a model by name), `data` (the course's own sets)."""
