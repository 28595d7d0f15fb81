"""nbgrader's side: releases, its folders and its gradebook, which only this package writes."""
