"""Start workers as jobs of SLURM, and keep them until Ctrl-C.

    python deploy/slurm_cluster.py --jobs 4 --partition NAME

The scheduler is this program: run it on a login node, in `tmux` or the like. Compute nodes see the
course's folder, its environment (`make setup`) and the folder with the certificates at the same
paths. `--show` prints a job's script and submits nothing.
"""

import argparse
import sys
from pathlib import Path

from started import NO_PAGES, PORT, serve, use_tls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="jobs, with a worker in each")
    parser.add_argument("--threads", type=int, default=8, help="submissions at once in a job")
    parser.add_argument("--gb", type=int, help="GB of a job [default: 4 for each thread, and 4]")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a job")
    parser.add_argument("--walltime", default="04:00:00", help="of a job")
    parser.add_argument("--partition", help="SLURM's partition")
    parser.add_argument("--account", help="SLURM's account")
    parser.add_argument("--interface", help="the nodes' network, such as ib0")
    parser.add_argument("--scratch", default="/tmp", help="a folder on the node's own disk")
    parser.add_argument("--tls", type=Path, default=Path("tls"), help="folder of the certificates")
    parser.add_argument("--port", type=int, default=PORT, help="of the scheduler; 0: any")
    parser.add_argument("--show", action="store_true", help="print a job's script, and end")
    options = parser.parse_args()
    tls = use_tls(options.tls)
    from dask_jobqueue import SLURMCluster
    from distributed import Security

    arguments, directives = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"], []
    if options.gpus:
        arguments += ["--resources", f"GPU={options.gpus}"]
        directives += [f"--gres=gpu:{options.gpus}"]
    cluster = SLURMCluster(
        cores=options.threads,
        processes=1,
        memory=f"{options.gb or 4 * options.threads + 4}GB",
        queue=options.partition,
        account=options.account,
        walltime=options.walltime,
        interface=options.interface,
        protocol="tls",
        security=Security(),  # of Dask's configuration
        python=sys.executable,
        local_directory=options.scratch,
        worker_extra_args=arguments,
        job_extra_directives=directives,
        scheduler_options={"port": options.port, **NO_PAGES},
    )
    if options.show:
        print(cluster.job_script())
        cluster.close()
        return
    cluster.scale(jobs=options.jobs)
    serve(cluster, tls)


if __name__ == "__main__":
    main()
