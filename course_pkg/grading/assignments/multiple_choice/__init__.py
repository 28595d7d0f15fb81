"""Checks of the assignment `multiple-choice`: scores of options, calibration, errors, pass@k."""
