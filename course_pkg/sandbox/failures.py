"""Why a fork server did not start, and what to do about it, from how it ended and what it wrote.

Chapter: appendix/for-instructors.
"""

import re
import signal

LAST_LINES = 3  # of the server's own error messages
DOCTOR = "run `course doctor`"
KILLED = (
    "most often because the machine or its container has too little memory: close other programs, "
    "or allow the container 4 GB"
)
_MISSING = re.compile(r"No module named '([\w.]+)'")
_ADVICE = (
    (_MISSING, r"the package {0} is missing from this Python: run `make setup`, or pip install it"),
    (
        re.compile(r"MemoryError|[Cc]annot allocate memory|std::bad_alloc|\[Errno 12\]"),
        "it got no more memory: `ulimit -v` should be unlimited, and `free -h` above 2 GB",
    ),
    (
        re.compile(r"Resource temporarily unavailable|can't start new thread|\[Errno 11\]"),
        "it could start no more processes: raise `ulimit -u`, or the pids limit of the container",
    ),
    (
        re.compile(r"Too many open files|\[Errno 24\]"),
        "it could open no more files: raise `ulimit -n`",
    ),
    (
        re.compile(r"No space left on device|\[Errno 28\]"),
        "the disk is full: free some space in the course's folder and in the temporary folder",
    ),
    (
        re.compile(r"cannot open shared object file|undefined symbol|ImportError"),
        "a library of this Python does not load: run `make distclean`, then `make`",
    ),
    (
        re.compile(r"Permission denied|Operation not permitted|\[Errno 1\]|\[Errno 13\]"),
        f"the system does not permit something that it needs: {DOCTOR}",
    ),
)


def why_not_started(code: int | None, errors: str, waited_s: float) -> str:
    """Why a fork server did not start, in one or a few lines that end with what to do.

    code: its exit code, negative for a signal; None if it still ran after `waited_s` seconds.
    errors: what it wrote to stderr.

    >>> why_not_started(1, "Traceback …\\nModuleNotFoundError: No module named 'nbclient'", 0.4)
    "ModuleNotFoundError: No module named 'nbclient' (the package nbclient is missing from this \
Python: run `make setup`, or pip install it)"
    """
    if code is None:
        how = f"it had not imported its modules after {waited_s:.0f} s"
        return f"{how} (the machine or its disk is too slow or busy: try again)"
    if code == -signal.SIGKILL:
        return f"it was killed ({KILLED})"
    lines = [line for line in errors.strip().splitlines() if line.strip()][-LAST_LINES:]
    found = [line.strip()[:500] for line in lines if not line.startswith((" ", "Traceback"))]
    said = "\n".join(found or lines)
    if not said:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"it ended with {how} and said nothing ({DOCTOR})"
    for pattern, advice in _ADVICE:
        if match := pattern.search(errors):
            return f"{said} ({advice.format(*match.groups())})"
    return f"{said} ({DOCTOR})"
