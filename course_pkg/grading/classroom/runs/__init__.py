"""A run that grades a class: from its submissions to records, gradebook and report."""
