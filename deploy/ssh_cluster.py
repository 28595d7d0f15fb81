"""Start a cluster on machines that you reach by SSH, and keep it until Ctrl-C.

    python deploy/ssh_cluster.py HOST HOST [HOST …]

The first host runs the scheduler, each of the others one worker; name a host twice for both. SSH
must reach each without a password, as your ~/.ssh/config says. The course, with its environment
(`make setup`), and the folder with the certificates have the same paths on each as here.
"""

import argparse
import sys
from pathlib import Path

from started import NO_PAGES, PORT, serve, use_tls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("hosts", nargs="+", metavar="HOST", help="scheduler first, then workers")
    parser.add_argument("--threads", type=int, default=4, help="submissions at once on a worker")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each worker")
    parser.add_argument("--tls", type=Path, default=Path("tls"), help="folder of the certificates")
    parser.add_argument("--port", type=int, default=PORT, help="of the scheduler; 0: any")
    options = parser.parse_args()
    if len(options.hosts) < 2:
        parser.error("expected two hosts or more: the scheduler's, then each worker's")
    tls = use_tls(options.tls)
    from distributed import SSHCluster

    worker = {"nthreads": options.threads, "protocol": "tls", **NO_PAGES}
    if options.gpus:
        worker["resources"] = {"GPU": options.gpus}
    cluster = SSHCluster(
        options.hosts,
        worker_options={**worker, "memory_limit": 0},  # the grader limits each submission
        scheduler_options={"protocol": "tls", "port": options.port, **NO_PAGES},
        remote_python=sys.executable,
    )
    serve(cluster, tls)


if __name__ == "__main__":
    main()
