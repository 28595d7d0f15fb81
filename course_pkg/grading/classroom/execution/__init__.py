"""Running one submission on this machine: fork servers, sandboxes, limits, GPUs."""
