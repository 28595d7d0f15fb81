"""Run untrusted programs in sandboxed processes; `probe` says whether this machine can."""
