"""nbgrader's folders and gradebook, which only this package writes."""
