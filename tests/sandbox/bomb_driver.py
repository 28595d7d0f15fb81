"""Set off one bomb in a sandbox with limits, and print as JSON how it ended.

Run as a script: `python bomb_driver.py FOLDER KIND BOMB MEMORY_MIB PROCESSES`, where FOLDER holds
course_pkg, readable by all, and KIND is "best" or "watchdog". Only the sandbox modules are used,
so that any Python and any user can run it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER, KIND, BOMB, MEMORY_MIB, PROCESSES = sys.argv[1:]
MIB = 1024 * 1024
PATIENCE_S = 10.0
UID = 64321  # of the processes inside, if this is run by root

PRELUDE = """
import mmap, os, sys, threading, time
sys.path.insert(0, {folder!r})
from course_pkg.sandbox.limits import Limits, child_limits
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid({uid}, {uid}, {uid})
    os.setresuid({uid}, {uid}, {uid})
child_limits(Limits({memory}, {processes}, 256, 1 << 30, None))
os.write(1, b"0\\n")
os.read(0, 1)
filled = 0
def block():
    global filled
    made = b"x" * (4 << 20)
    filled += 4
    os.write(1, b"%d\\n" % filled)
    return made
"""
BOMBS = {
    # One that keeps what it has got, as a kernel does when the cell has failed.
    "memory": """
kept = []
while True:
    try: kept.append(block())
    except MemoryError: time.sleep(0.01)
""",
    "shared memory": """
while True:
    area = mmap.mmap(-1, 4 << 20)
    area.write(block())
    globals().setdefault("kept", []).append(area)
""",
    "memory of children": """
for _ in range(8):
    if not os.fork():
        kept = [block() for _ in range(15)]
        time.sleep(60)
time.sleep(60)
""",
    "tmpfs": """
with open("/srv/file", "wb", buffering=0) as file:
    while True: file.write(block())
""",
    "deleted file in tmpfs": """
file = open("/dev/shm/file", "wb", buffering=0)
os.remove("/dev/shm/file")
while True: file.write(block())
""",
    "fork": """
while True:
    try: os.fork()
    except OSError: time.sleep(0.001)
""",
    "threads": """
while True:
    try: threading.Thread(target=time.sleep, args=(60,)).start()
    except RuntimeError: time.sleep(0.01)
""",
    "honest": """
kept = [block() for _ in range(20)]
for _ in range(3):
    if not os.fork(): time.sleep(1); os._exit(0)
time.sleep(1)
""",
    # Pages of a parent count once, however many children share them.
    "honest children": """
kept = [block() for _ in range(25)]
for _ in range(5):
    if not os.fork(): time.sleep(1); os._exit(0)
time.sleep(1)
""",
}


def walls(mark: str) -> list[str]:
    """A sandbox for the bomb; `mark` is on the command line of all processes in it."""
    from course_pkg.sandbox.probe import find_bubblewrap

    line = [str(find_bubblewrap()), "--unshare-pid", "--die-with-parent", "--ro-bind", "/", "/"]
    line += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/dev/shm", "/srv"):
        line += ["--perms", "1777", "--tmpfs", folder]
    if os.getuid():
        line += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    prelude = PRELUDE.format(
        folder=FOLDER, uid=UID, memory=int(MEMORY_MIB) * MIB, processes=PROCESSES
    )
    return [*line, sys.executable, "-S", "-c", prelude + BOMBS[BOMB], mark]


def processes_with(mark: str) -> list[int]:
    """The processes, this one apart, that have `mark` on their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            marked = mark.encode() in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if folder.name.isdigit() and marked and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def main() -> None:
    """Set off the bomb, wait for its end, and report."""
    sys.path.insert(0, FOLDER)
    from course_pkg.sandbox.limits import Limits, fence
    from course_pkg.sandbox.watchdog import Watchdog

    limits = Limits(int(MEMORY_MIB) * MIB, int(PROCESSES), 256, 1 << 30, None)
    guard = (
        fence(limits, "bomb") if KIND == "best" else Watchdog(limits.memory_bytes, limits.processes)
    )
    mark = f"bomb-{os.getpid()}-{time.time_ns()}"
    info, told = os.pipe()
    command = walls(mark)
    command[1:1] = ["--info-fd", str(told)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[told],
        preexec_fn=lambda: [os.write(gate, b"0") for gate in guard.join],
    )
    os.close(told)
    process.stdout.readline()  # the bomb is in place
    guard.watch(json.loads(os.read(info, 4096))["child-pid"])
    began = time.monotonic()
    process.stdin.write(b"x")
    process.stdin.flush()
    os.set_blocking(process.stdout.fileno(), False)
    last = b""
    over = False
    while not over and time.monotonic() - began < PATIENCE_S:
        over = process.poll() is not None or guard.out_of_memory() or guard.out_of_processes()
        last = (last + (process.stdout.read() or b""))[-4096:]
        time.sleep(0.01)
    seconds = time.monotonic() - began
    report = {
        "kind": guard.kind,
        "over": over,
        "seconds": seconds,
        "memory": guard.out_of_memory(),
        "processes": guard.out_of_processes(),
        "starved": guard.starved(),
        "filled_mib": int((last.split() or [b"0"])[-1]),
        "peak_mib": (guard.peak_bytes() or 0) / MIB,
    }
    guard.kill()
    report["returncode"] = process.wait(timeout=10)
    guard.close()
    report["left"] = processes_with(mark)
    groups = (folder for folder, _, _ in os.walk("/sys/fs/cgroup"))  # others' may vanish meanwhile
    report["groups"] = [path for path in groups if f"/course-{os.getpid()}-" in path]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
