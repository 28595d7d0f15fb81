"""Shared by the scripts of this folder: TLS for a whole cluster, and waiting for its end."""

import signal
from pathlib import Path
from typing import Protocol

NAMES = {"ca": "ca.pem", "cert": "cert.pem", "key": "key.pem"}
PORT = 8786
# Dask's pages are not encrypted, and ask for no certificate: only for the machine that they are on.
NO_PAGES = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


class Cluster(Protocol):
    """A cluster of Dask."""

    scheduler_address: str

    def close(self) -> None:
        """End the scheduler and all workers."""


def use_tls(folder: Path) -> dict[str, Path]:
    """Set Dask's configuration to the certificates of a folder; their absolute paths.

    The paths are the same on every machine. Ends the program if one is missing on this one.
    """
    import dask

    paths = {name: folder.resolve() / file for name, file in NAMES.items()}
    if missing := [str(path) for path in paths.values() if not path.is_file()]:
        raise SystemExit(f"{', '.join(missing)} missing: run deploy/certificates.sh {folder}")
    settings = {"distributed.comm.require-encryption": True}
    settings["distributed.comm.tls.ca-file"] = str(paths["ca"])
    for part in ("client", "scheduler", "worker"):
        settings[f"distributed.comm.tls.{part}.cert"] = str(paths["cert"])
        settings[f"distributed.comm.tls.{part}.key"] = str(paths["key"])
    dask.config.set(settings)
    return paths


def serve(cluster: Cluster, tls: dict[str, Path]) -> None:
    """Say how to grade on the cluster, and keep it until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        options = " ".join(f"--tls-{name} {path}" for name, path in tls.items())
        print(f"course grade NAME --scheduler {cluster.scheduler_address} {options}")
        print("The cluster ends with this program: Ctrl-C, when you have graded.", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        cluster.close()
