"""The system call filter: what it denies, what it allows, and that it can't be bypassed."""

import ctypes
import ctypes.util
import errno
import json
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from course_pkg.sandbox import seccomp
from tests.sandbox.conftest import ROOT

ALL_DENIED = {
    name: (numbers, error)
    for error, calls in seccomp.DENIED.items()
    for name, numbers in calls.items()
}
needs_kernel = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in seccomp.ARCHITECTURES,
    reason=f"there is no filter for {sys.platform} on {platform.machine()}",
)


def verdict(arch, number, *arguments, audit=None):
    """What the filter returns for a call: an interpreter of the kernel's classic BPF."""
    code = list(struct.iter_unpack("=HBBI", seccomp.program(arch)))
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    audit = seccomp.AUDIT[arch] if audit is None else audit
    data = struct.pack("=IIQ6Q", number, audit, 0, *(a & (2**64 - 1) for a in padded))
    at = accumulator = 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == seccomp.RETURN:
            return value
        if operation == seccomp.LOAD:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == seccomp.JUMP:
            at += value
        else:
            fits = {
                seccomp.EQUAL: accumulator == value,
                seccomp.AT_LEAST: accumulator >= value,
                seccomp.ANY_BIT: bool(accumulator & value),
            }[operation]
            at += yes if fits else no


def denied(error):
    return seccomp.FAIL | error


@pytest.mark.parametrize("arch", seccomp.ARCHITECTURES)
def test_listed_calls_fail_and_all_others_are_allowed(arch):
    column = seccomp.ARCHITECTURES.index(arch)
    listed = {n[column]: e for n, e in ALL_DENIED.values() if n[column] is not None}
    guarded = {numbers[column] for numbers, _ in seccomp.GUARDED.values()}
    for number in set(range(600)) - guarded:
        expected = denied(listed[number]) if number in listed else seccomp.ALLOW
        assert verdict(arch, number) == expected, number


GUARDED = [  # call, arguments, and whether it is allowed
    ("clone", (0x01200011,), True),  # fork
    ("clone", (0x003D0F00,), True),  # a thread
    *(("clone", (1 << bit | 17,), False) for bit in (17, 25, 26, 27, 28, 29, 30)),
    ("socket", (1, 1, 0), True),
    ("socket", (2, 1, 6), True),
    ("socket", (10, 2, 17), True),
    ("socket", (2, 1, 132), False),  # SCTP
    ("socket", (16, 3, 0), True),  # the list of interfaces
    ("socket", (16, 3, 6), False),  # XFRM
    ("socket", (16, 3, 12), False),  # netfilter
    ("socket", (17, 3, 0), False),  # packets
    ("socket", (38, 5, 0), False),  # the kernel's ciphers
    ("socket", (40, 1, 0), False),  # the virtual machine's host
    ("socketpair", (1, 1, 0), True),
    ("socketpair", (30, 1, 0), False),
    ("personality", (0xFFFFFFFF,), True),
    ("personality", (0x0040000,), False),
    ("ioctl", (0, 0x5401), True),
    ("ioctl", (0, 0x5412), False),  # TIOCSTI
    ("ioctl", (0, 1 << 32 | 0x5412), False),  # the kernel reads the low half only
    ("ioctl", (0, 0x541C), False),
]


@pytest.mark.parametrize("arch", seccomp.ARCHITECTURES)
def test_a_guarded_call_depends_on_its_arguments(arch):
    column = seccomp.ARCHITECTURES.index(arch)
    for call, arguments, allowed in GUARDED:
        expected = seccomp.ALLOW if allowed else denied(errno.EPERM)
        number = seccomp.GUARDED[call][0][column]
        assert verdict(arch, number, *arguments) == expected, (call, arguments)


def test_calls_of_other_architectures_are_denied():
    refused = denied(errno.ENOSYS)
    i386 = 0x40000003
    assert verdict("x86_64", 26, audit=i386) == refused  # ptrace in a 32-bit program
    assert verdict("x86_64", seccomp.X32 + 101) == refused
    assert verdict("x86_64", seccomp.X32) == refused
    assert verdict("aarch64", 26, audit=0x40000028) == refused  # 32-bit ARM


@pytest.mark.parametrize("arch", seccomp.ARCHITECTURES)
def test_the_numbers_agree_with_libseccomp(arch):
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp is not installed")
    library = ctypes.CDLL(name)
    calls = {name: numbers for name, (numbers, _) in ALL_DENIED.items()}
    calls |= {name: numbers for name, (numbers, _) in seccomp.GUARDED.items()}
    compared = 0
    for call, numbers in calls.items():
        known = library.seccomp_syscall_resolve_name_arch(
            ctypes.c_uint32(seccomp.AUDIT[arch]), call.encode()
        )
        number = numbers[seccomp.ARCHITECTURES.index(arch)]
        if known >= 0:
            assert number == known, call
            compared += 1
        elif known < -1:  # the library knows that this architecture lacks the call
            assert number is None, call
    assert compared > 50


def test_another_architecture_has_no_filter(monkeypatch):
    with pytest.raises(ValueError, match=r"riscv64.*x86_64, aarch64"):
        seccomp.program("riscv64")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="riscv64"):
        seccomp.install()


def child(code, *arguments):
    """Run `code` in a new Python without a terminal; returns the JSON that it prints."""
    prelude = f"""
import ctypes, errno, json, os, sys, threading
sys.path.insert(0, {str(ROOT)!r})
from course_pkg.sandbox import seccomp
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(*map(ctypes.c_long, (number, *arguments)))
    return ctypes.get_errno() if result == -1 else 0
"""
    line = [sys.executable, "-c", prelude + code, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_kernel
def test_the_kernel_denies_every_listed_call():
    """The arguments are invalid, so nothing happens even if a call is allowed."""
    column = seccomp.ARCHITECTURES.index(platform.machine())
    numbers = {name: n[column] for name, (n, _) in ALL_DENIED.items() if n[column] is not None}
    errors = child(
        "seccomp.install()\n"
        "numbers = json.loads(sys.argv[1])\n"
        "print(json.dumps({name: call(n, *[-1] * 6) for name, n in numbers.items()}))",
        json.dumps(numbers),
    )
    assert errors == {name: ALL_DENIED[name][1] for name in numbers}


HARMLESS = """
column = seccomp.ARCHITECTURES.index(os.uname().machine)
numbers = {name: n[column] for calls in seccomp.DENIED.values() for name, n in calls.items()}
if sys.argv[1] == "filtered": seccomp.install()
pid, zeros = os.getpid(), ctypes.create_string_buffer(256)
print(json.dumps([
    call(numbers["unshare"], 0),
    call(numbers["kcmp"], pid, pid, 0, 0, 0),
    call(numbers["process_vm_readv"], pid, 0, 0, 0, 0, 0),
    call(numbers["memfd_create"], ctypes.addressof(zeros), 0),
    call(numbers["adjtimex"], ctypes.addressof(zeros)),  # reads the state of the clock
]))
"""


@needs_kernel
def test_the_same_calls_succeed_without_the_filter():
    assert child(HARMLESS, "unfiltered") == [0, 0, 0, 0, 0]
    refused = [errno.EPERM] * 3 + [errno.ENOSYS, errno.EPERM]
    assert child(HARMLESS, "filtered") == refused


@needs_kernel
def test_it_applies_to_earlier_threads_and_to_later_programs():
    assert child("""
import subprocess
go, seen = threading.Event(), []
unshare = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
early = threading.Thread(target=lambda: (go.wait(), seen.append(call(unshare, 0))))
early.start()
seccomp.install()
seccomp.install()  # a second filter changes nothing
go.set()
early.join()
late = threading.Thread(target=lambda: seen.append(call(unshare, 0)))
late.start()
late.join()
program = subprocess.run(["unshare", "--user", "true"], capture_output=True, text=True)
status = open("/proc/self/status").read()
print(json.dumps([*seen, program.returncode != 0, "NoNewPrivs:\\t1" in status]))
""") == [errno.EPERM, errno.EPERM, True, True]


TYPING = """
import fcntl, pty
_, terminal = pty.openpty()
seccomp.install()
try:
    fcntl.ioctl(terminal, 0x5412, b"x")
    print(0)
except OSError as error:
    print(error.errno)
"""


@needs_kernel
def test_no_input_can_be_inserted_into_a_terminal():
    assert child(TYPING) == errno.EPERM


EXHAUSTIVE = [pytest.param(n, marks=pytest.mark.exhaustive) for n in ("torch_workers", "models")]


@needs_kernel
@pytest.mark.parametrize(
    "name", ["processes", "programs", "threads_and_sockets", "callbacks", "kernel", *EXHAUSTIVE]
)
def test_the_standard_library_and_the_libraries_of_the_course_work_under_it(name):
    script = Path(__file__).with_name("everyday.py")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, str(script), name]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
