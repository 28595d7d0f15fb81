"""The address of a scheduler: what leaves the machine is encrypted, or refused with what to do."""

import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.common import scheduler_address as addresses
from course_pkg.common.scheduler_address import (
    SETTINGS,
    AddressError,
    scheduler_of,
    why_open,
)

PEM = "-----BEGIN CERTIFICATE-----\n"


@pytest.fixture
def pem(tmp_path):
    path = tmp_path / "cert.pem"
    path.write_text(PEM)
    return path


@pytest.fixture
def settings(monkeypatch):
    """Dask's settings, without this machine's."""
    import dask.config

    with dask.config.set(dict.fromkeys(SETTINGS.values())):
        yield dask.config


REFUSED = [  # addresses, and what is said
    ("tcp://10.0.0.5:8786", "not encrypted.*--protocol tls.*--tls-ca.*distributed.comm.tls"),
    ("cluster.uni.edu:8786", "not on this machine, and not encrypted"),
    ("tcp://127.0.0.1.evil.org:8786", "not on this machine"),
    ("tls://10.0.0.5:8786", "--tls-ca and --tls-cert and --tls-key missing"),
    ("ws://127.0.0.1:80", "expected tls:// or tcp://"),
    ("127.0.0.1", "expected tls://HOST:PORT"),
    ("tls://u@h/x:1", "expected tls://HOST:PORT"),
    ("tls://10.0.0.5:0", "expected tls://HOST:PORT"),
]


def test_a_loopback_address_needs_no_tls_and_others_do(settings):
    for address in ("127.0.0.1:8786", "tcp://127.9.9.9:1", "tcp://[::1]:8786", "tcp://localhost:1"):
        assert scheduler_of(address, None, None, None).address == f"tcp://{address.split('//')[-1]}"
    for address, said in REFUSED:
        with pytest.raises(AddressError, match=said):
            scheduler_of(address, None, None, None)


def test_a_scheduler_or_worker_that_listens_unencrypted_is_refused_with_what_to_do():
    for address in ("tcp://10.0.0.7:1", "tcp://[fe80::1]:1", "ucx://127.0.0.1:1", "inproc://1/2/3"):
        why = why_open(address)
        assert f"it listens at {address}, without encryption" in why
        assert "--host 127.0.0.1" in why and "--protocol tls" in why
    assert why_open("x") and why_open("")
    assert not why_open("tls://10.0.0.7:1") and not why_open("tcp://[::1]:1")


def test_without_dask_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr(addresses, "find_spec", lambda _: None)
    with pytest.raises(AddressError, match="needs Dask, which is not installed here: requirements"):
        scheduler_of("127.0.0.1:8786", None, None, None)


def test_certificates_come_from_the_options_or_from_dasks_settings(settings, pem):
    given = scheduler_of("tls://10.0.0.5:8786", pem, pem, None)
    assert (given.address, given.ca, given.certificate) == ("tls://10.0.0.5:8786", PEM, PEM)
    assert given.key == "" and "certificate" not in repr(given)
    names = dict.fromkeys(SETTINGS.values(), str(pem))
    with settings.set({**names, SETTINGS["--tls-key"]: PEM}):
        assert scheduler_of("tls://h:1", None, None, None).key == PEM


def test_files_that_are_missing_or_no_certificates_are_named(settings, pem, tmp_path):
    with pytest.raises(AddressError, match=r"--tls-cert: .*nowhere can't be read"):
        scheduler_of("tls://h:1", pem, tmp_path / "nowhere", None)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(AddressError, match=r"--tls-ca: .*is not a PEM file"):
        scheduler_of("tls://h:1", tmp_path / "text", pem, None)
    with pytest.raises(AddressError, match="does not use the certificates"):
        scheduler_of("tcp://127.0.0.1:1", pem, pem, pem)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scheduler", "10.0.0.5:8786"], "not encrypted"),
        (["--scheduler", "127.0.0.1:8786", "--jobs", "2"], "--jobs is for this machine"),
        (["--scheduler", "127.0.0.1:8786", "--unsafe-no-sandbox"], "in sandboxes"),
        (["--tls-key", "key.pem"], "are for --scheduler"),
    ],
)
def test_the_command_refuses_before_it_does_anything(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["grade", "bleu", *arguments])
    assert (done.exit_code, said in done.stderr) == (2, True), done.output
    assert list(tmp_path.iterdir()) == []
