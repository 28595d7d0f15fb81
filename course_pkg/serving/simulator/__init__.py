"""A discrete-event simulator of an LLM server, fed with measured iteration times.

`cost`: the time of an iteration; `workload`: requests; `policies` and `mlfq`: who runs next;
`memory`: keys and values that move to the host; `loop`: the simulation; `statistics`: its figures.
"""
