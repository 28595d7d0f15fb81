"""Several processes, one model: data, ZeRO, tensor and pipeline parallelism on real ranks."""
