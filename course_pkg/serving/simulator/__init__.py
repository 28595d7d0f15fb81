"""A discrete-event simulator of an LLM server: iteration times, workloads, policies, statistics."""
