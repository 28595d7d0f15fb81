"""The process of a fork server: imports modules once, then forks a child for every request.

`python -m course_pkg.sandbox.fork_process FD MODULE:FUNCTION [PRELOAD …]` starts the first one; it
forks its siblings itself. Its memory is in huge pages: with torch and transformers, without them a
fork and the end of the child take about three times as long.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from course_pkg.sandbox.enter import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    enter,
    enter_limits_only,
    libc,
)
from course_pkg.sandbox.limits import ResourceLimits

MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # from glibc 2.35 on, a heap of huge pages
HUGE_PAGE = 2 << 20  # bytes, on x86-64 and on ARM with pages of 4 KiB
MADV_COLLAPSE = 25  # since Linux 6.1; earlier kernels answer EINVAL

libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
MAX_MESSAGE = 64 * 1024
MAX_DESCRIPTORS = 16


def use_huge_pages() -> int:
    """Move this process's private memory to huge pages, as far as the kernel can; the bytes moved.

    Call it once, when everything is loaded: it copies the memory.
    """
    moved = 0
    with open("/proc/self/maps") as file:
        mapped = file.read()
    for start, end in huge_ranges(mapped):
        if libc.madvise(start, end - start, MADV_COLLAPSE) == 0:
            moved += end - start
    return moved


def huge_ranges(maps: str) -> Iterator[tuple[int, int]]:
    """Start and end of the whole huge pages in private, writable memory, by /proc/PID/maps.

    Example:

        >>> heap = "1ff000-7ff000 rw-p 00000000 00:00 0  [heap]"
        >>> [(hex(start), hex(end)) for start, end in huge_ranges(heap)]
        [('0x200000', '0x600000')]
    """
    for line in maps.splitlines():
        addresses, permissions, _, _, inode, *name = line.split(maxsplit=5)
        if permissions != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        first = -(-start // HUGE_PAGE) * HUGE_PAGE
        last = end // HUGE_PAGE * HUGE_PAGE
        if first < last:
            yield first, last


Target = Callable[[dict[str, Any], list[int]], None]


def serve(sock: socket.socket, target: Target) -> None:
    """Fork a child for every request, until the client closes the socket."""
    sock.send(b"ready")
    while True:
        message, received, _, _ = socket.recv_fds(sock, MAX_MESSAGE, MAX_DESCRIPTORS)
        if not message:
            return
        request = json.loads(message)
        server = os.getpid()
        child = os.fork()
        if child == 0:
            sock.close()
            end_with(server)
            if "server" in request:
                run_server(received[0], *request["server"], forked=True)
            _run_child(request, received, target)
        for descriptor in received:
            os.close(descriptor)
        sock.send(b"%d %d" % (request["number"], child))


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends; end it now if the parent has ended already."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _run_child(request: dict[str, Any], received: list[int], target: Target) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        tempfile.tempdir = None  # the server's own folder does not exist inside
        count = request["sandbox_descriptors"]
        sandbox, descriptors = received[:count], received[count:]
        try:
            if request["namespaces"]:
                pidfd, *join = sandbox
                limits = ResourceLimits(**request["limits"])
                enter(pidfd, join, descriptors, request["uid"], limits)
            else:
                enter_limits_only(sandbox, descriptors)
            target(request["job"], descriptors)
        except Exception as error:
            text = json.dumps({"failed": f"{type(error).__name__}: {error}"[:1000]})
            os.write(descriptors[0], text.encode() + b"\n")
            raise
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        os._exit(code)


def run_server(descriptor: int, target: str, *preload: str, forked: bool = False) -> NoReturn:
    """Turn this process into a server: load what `preload` names, serve, and exit.

    Args:
        forked: whether another server forked this one, with which it shares its memory.
    """
    # The kernel collects the children, and theirs if their parent is killed: a process that nobody
    # collects would keep its namespace from ending.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    gc.disable()  # imports make little garbage, and looking for it takes a fifth of their time
    try:
        for name in preload:
            load(name)
        module, _, function = target.partition(":")
        run = getattr(importlib.import_module(module), function)
        require_no_cuda()
        gc.freeze()  # or a garbage collection in a child would copy the server's memory
        gc.enable()
        if not forked:
            use_huge_pages()
        with socket.socket(fileno=descriptor) as sock:
            serve(sock, run)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # skip the shutdown of libraries such as torch, which takes long


def load(name: str) -> None:
    """Import a module; for "module:function:argument", also call its function with the text."""
    module, _, call = name.partition(":")
    imported = importlib.import_module(module)
    if call:
        function, _, argument = call.partition(":")
        getattr(imported, function)(argument)


def require_no_cuda() -> None:
    """Raise RuntimeError if this process has a CUDA context: no child of it could use a GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(
            "a module that the fork server imports starts CUDA, which breaks CUDA in every child: "
            "start it in a function, not at import"
        )


def main(arguments: list[str]) -> None:
    """The first server's process."""
    descriptor, target, *preload = arguments
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # its parent's end closes its socket too
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this
    run_server(int(descriptor), target, *preload)


if __name__ == "__main__":
    main(sys.argv[1:])
