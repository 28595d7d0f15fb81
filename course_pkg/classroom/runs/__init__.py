"""Running a class: options, sandboxes, progress, and the commands."""
