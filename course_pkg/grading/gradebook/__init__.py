"""nbgrader's side: handing out, its folders and its gradebook, of which this is the only writer."""
