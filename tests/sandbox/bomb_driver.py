"""Run one program that exceeds the limits ("bomb") in a sandbox; print how it ended, as JSON.

Run as a script: `python bomb_driver.py FOLDER KIND BOMB MEMORY_MIB PROCESSES`, where FOLDER holds
course_pkg, and KIND is "control group" or "watchdog".
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER, KIND, BOMB, MEMORY_MIB, PROCESSES = sys.argv[1:]
MIB = 1024 * 1024
END_WITHIN_S = 300.0
UID = 64321  # of the processes inside, if root runs this

PRELUDE = """
import mmap, os, sys, threading, time
sys.path.insert(0, {folder!r})
from course_pkg.sandbox.limits import ResourceLimits, set_process_limits
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid({uid}, {uid}, {uid})
    os.setresuid({uid}, {uid}, {uid})
set_process_limits(ResourceLimits({memory}, {processes}, 256, 1 << 30))
os.write(1, b"0\\n")
os.read(0, 1)
filled = 0
def block():
    global filled
    data = b"x" * (4 << 20)
    filled += 4
    os.write(1, b"%d\\n" % filled)
    return data
"""
BOMBS = {
    # Keeps its memory after the error, as a kernel does after a cell failed.
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
        time.sleep(600)
time.sleep(600)
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
    try: threading.Thread(target=time.sleep, args=(600,)).start()
    except RuntimeError: time.sleep(0.01)
""",
    # Within the limits: runs until its input ends.
    "honest": """
kept = [block() for _ in range(20)]
for _ in range(3):
    if not os.fork(): break
else: os.write(1, b"forked 80\\n")
sys.stdin.read()
""",
    # Pages of a parent count once, however many children share them.
    "honest children": """
kept = [block() for _ in range(25)]
for _ in range(5):
    if not os.fork(): break
else: os.write(1, b"forked 100\\n")
sys.stdin.read()
""",
}


def bubblewrap_line(label: str) -> list[str]:
    """A sandbox for the bomb; `label` is on the command line of all processes in it."""
    from course_pkg.sandbox.probe import find_bubblewrap

    line = [str(find_bubblewrap()), "--unshare-pid", "--die-with-parent", "--ro-bind", "/", "/"]
    line += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/dev/shm", "/srv"):
        line += ["--perms", "1777", "--tmpfs", folder]
    if os.getuid():
        line += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    memory = int(MEMORY_MIB) * MIB
    prelude = PRELUDE.format(folder=FOLDER, uid=UID, memory=memory, processes=PROCESSES)
    return [*line, sys.executable, "-S", "-c", prelude + BOMBS[BOMB], label]


def processes_with(label: str) -> list[int]:
    pids = []
    for folder in Path("/proc").iterdir():
        try:
            labeled = label.encode() in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if folder.name.isdigit() and labeled and int(folder.name) != os.getpid():
            pids.append(int(folder.name))
    return pids


def counted_looks(enforcer) -> list[bool]:
    """A list that grows with each look of a watchdog, which has no other trace."""
    looks = []
    if KIND == "watchdog":
        measure = enforcer._measure
        enforcer._measure = lambda exact: looks.append(exact) or measure(exact)
    return looks


def main() -> None:
    sys.path.insert(0, FOLDER)
    from course_pkg.sandbox.limits import ResourceLimits, limit_enforcer
    from course_pkg.sandbox.watchdog import Watchdog

    limits = ResourceLimits(int(MEMORY_MIB) * MIB, int(PROCESSES), 256, 1 << 30)
    if KIND == "watchdog":
        enforcer = Watchdog(limits.memory_bytes, limits.processes)
    else:
        enforcer = limit_enforcer(limits, "bomb")
    looks = counted_looks(enforcer)
    label = f"bomb-{os.getpid()}-{time.time_ns()}"
    info, info_write = os.pipe()
    command = bubblewrap_line(label)
    command[1:1] = ["--info-fd", str(info_write)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[info_write],
        preexec_fn=lambda: [os.write(join, b"0") for join in enforcer.join_descriptors],
    )
    os.close(info_write)
    process.stdout.readline()  # the bomb is ready
    enforcer.watch(json.loads(os.read(info, 4096))["child-pid"])
    began = time.monotonic()
    process.stdin.write(b"x")
    process.stdin.flush()
    os.set_blocking(process.stdout.fileno(), False)
    last = b""
    ended = False
    filled_mib = 0
    enough = None  # so many looks end a program within the limits
    while not ended and time.monotonic() - began < END_WITHIN_S:
        ended = process.poll() is not None
        ended = ended or enforcer.out_of_memory() or enforcer.out_of_processes()
        last = (last + (process.stdout.read() or b""))[-4096:]
        filled_mib = int((last.split() or [b"0"])[-1])
        if b"forked" in last and (enforcer.peak_bytes() or 0) >= filled_mib * MIB:
            enough = enough or len(looks) + (5 if KIND == "watchdog" else 0)
            if len(looks) >= enough:
                process.stdin.close()
                last = b"%d" % filled_mib
        time.sleep(0.01)
    report = {
        "kind": enforcer.kind,
        "ended": ended,
        "out_of_memory": enforcer.out_of_memory(),
        "out_of_processes": enforcer.out_of_processes(),
        "killed_within_limits": enforcer.killed_within_limits(),
        "filled_mib": filled_mib,
        "peak_mib": (enforcer.peak_bytes() or 0) / MIB,
    }
    enforcer.kill()
    report["returncode"] = process.wait(timeout=120)
    enforcer.close()
    report["processes_left"] = processes_with(label)
    groups = (folder for folder, _, _ in os.walk("/sys/fs/cgroup"))  # other groups may vanish
    report["groups_left"] = [path for path in groups if f"/course-{os.getpid()}-" in path]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
