"""The address of a scheduler, and the certificates for it: from options, or from Dask's settings.

What is not encrypted stays on this machine: another address than a loopback one needs TLS.
"""

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from course_pkg.common.errors import CourseError
from course_pkg.common.http_client import is_loopback

if TYPE_CHECKING:
    from distributed.security import Security

_ADDRESS = re.compile(
    r"(?:(?P<scheme>[a-z]+)://)?(?P<host>\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+):(?P<port>\d{1,5})"
)
HOW = (
    "start scheduler and workers with `--protocol tls --tls-ca-file ca.pem --tls-cert cert.pem "
    "--tls-key key.pem`, and give a tls:// address with --tls-ca, --tls-cert and --tls-key (or set "
    "distributed.comm.tls in Dask's configuration)"
)
SETTINGS = {
    "--tls-ca": "distributed.comm.tls.ca-file",
    "--tls-cert": "distributed.comm.tls.client.cert",
    "--tls-key": "distributed.comm.tls.client.key",
}
MAX_PEM = 2**20
DASK = "requirements.txt has the versions of dask and distributed"


class AddressError(CourseError, ValueError):
    """The scheduler can't be used as it was given; the message says how."""


@dataclass(frozen=True)
class SchedulerAddress:
    """The scheduler of a cluster.

    Attributes:
        address: such as tls://10.0.0.5:8786.
        ca, certificate, key: for TLS, the texts of the PEM files; "" for none.
    """

    address: str
    ca: str = ""
    certificate: str = field(default="", repr=False)  # its file may hold the key as well
    key: str = field(default="", repr=False)

    @property
    def security(self) -> "Security | None":
        """The certificates for Dask's client; None without TLS."""
        if not self.ca:
            return None
        from distributed.security import Security

        return Security(
            require_encryption=True,
            tls_ca_file=self.ca,
            tls_client_cert=self.certificate,
            tls_client_key=self.key or None,
        )


def scheduler_of(
    address: str, ca: Path | None, cert: Path | None, key: Path | None
) -> SchedulerAddress:
    """The scheduler to use, with these PEM files or those of Dask's configuration."""
    if find_spec("distributed") is None:
        raise AddressError(f"--scheduler needs Dask, which is not installed here: {DASK}")
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match["port"]) < 2**16:
        raise AddressError(f"{address!r} is not a scheduler's address; expected tls://HOST:PORT")
    scheme = match["scheme"] or "tcp"
    paths = (ca, cert, key)
    if scheme not in ("tcp", "tls"):
        raise AddressError(f"{address!r} starts with {scheme}://; expected tls:// or tcp://")
    whole = f"{scheme}://{match['host']}:{match['port']}"
    if scheme == "tcp" and any(paths):
        raise AddressError(f"{whole} does not use the certificates: give tls:// for TLS")
    if scheme == "tcp" and not is_loopback(match["host"].strip("[]")):
        raise AddressError(
            f"{whole} is not on this machine, and not encrypted: anybody on the way could read "
            f"the submissions and change the points; {HOW}"
        )
    if scheme == "tcp":
        return SchedulerAddress(whole)
    if any(paths):
        texts = [_pem(*item) if item[1] else "" for item in zip(SETTINGS, paths, strict=True)]
    else:
        texts = list(map(_setting, SETTINGS.values()))
    if not all(texts[:2]):
        missing = " and ".join(name for name, text in zip(SETTINGS, texts, strict=True) if not text)
        raise AddressError(f"{whole} needs certificates; {missing} missing: {HOW}")
    return SchedulerAddress(whole, *texts)


def why_open(address: str) -> str:
    """Why a scheduler or worker at an address is refused; "" if bytes to it are safe."""
    match = _ADDRESS.fullmatch(address)
    scheme = match["scheme"] if match else None
    if scheme == "tls" or (scheme == "tcp" and is_loopback(match["host"].strip("[]"))):
        return ""
    return (
        f"it listens at {address}, without encryption: start it with --host 127.0.0.1 if the whole "
        f"cluster is on this machine; else {HOW}"
    )


def _setting(name: str) -> str:
    """The certificate of one of Dask's settings, which hold a file's path, or the text itself."""
    import dask.config

    text = str(dask.config.get(name, None) or "")
    return text if "\n" in text or not text else _pem(name, Path(text))


def _pem(name: str, path: Path) -> str:
    try:
        text = path.read_bytes()[:MAX_PEM].decode("ascii")
    except (OSError, ValueError) as error:
        raise AddressError(f"{name}: {path} can't be read ({error})") from None
    if "-----BEGIN" not in text:
        raise AddressError(f"{name}: {path} is not a PEM file; expected one with -----BEGIN")
    return text
