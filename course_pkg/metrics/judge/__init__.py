"""A language model as judge: G-Eval, its biases, and error spans."""
