"""The options for a Dask cluster, which several commands have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from course_pkg.common.scheduler_address import SchedulerAddress

TlsCa = Annotated[Path | None, typer.Option(help="Certificate of the cluster's authority (PEM).")]
TlsCert = Annotated[Path | None, typer.Option(help="Your certificate (PEM).")]
TlsKey = Annotated[Path | None, typer.Option(help="Its private key (PEM).")]


def scheduler_of_options(
    address: str | None, ca: Path | None, certificate: Path | None, key: Path | None
) -> "SchedulerAddress | None":
    """The scheduler of --scheduler and the TLS options; None without. Raises AddressError."""
    from course_pkg.common.scheduler_address import AddressError, scheduler_of

    if address is not None:
        return scheduler_of(address, ca, certificate, key)
    if ca or certificate or key:
        raise AddressError("--tls-ca, --tls-cert and --tls-key are for --scheduler")
    return None
