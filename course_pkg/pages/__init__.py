"""What the pages use: data, experiments, sliders, labs."""
