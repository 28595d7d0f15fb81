"""Right programs pass, wrong ones get a name, hostile ones neither pass nor hurt anything."""

from collections import Counter

import pytest

from course_pkg.sandbox.namespaces import SandboxFailed
from course_pkg.sandbox.probe import SandboxState
from course_pkg.studies.code_benchmarks import program_runner
from course_pkg.studies.code_benchmarks.judge_process import ProgramVerdict as V
from course_pkg.studies.code_benchmarks.problems import CodeProblem, load_code_items, load_humaneval
from course_pkg.studies.code_benchmarks.program_runner import ProgramLimits, ProgramRunner
from tests.studies.code_benchmarks.conftest import needs_sandbox
from tests.studies.code_benchmarks.hostile_programs import HOSTILE

pytestmark = needs_sandbox


def verdicts(results):
    return Counter(result.verdict for result in results)


def test_reference_solutions_pass(runner):
    problems = [*load_humaneval()[::32], *load_code_items()[::16]]
    results = runner.run_all([(problem, problem.solved) for problem in problems])
    assert verdicts(results) == {"passed": len(problems)}
    assert all(result.calls > 0 for result in results)


@pytest.mark.exhaustive
def test_all_reference_solutions_pass_and_no_empty_function_does():
    problems = [*load_humaneval(), *load_code_items()]
    empty = [
        (problem, problem.solved.split("def ")[0] + f"def {problem.entry_point}(*a):\n    pass")
        for problem in problems
    ]
    with ProgramRunner() as own:
        solved = own.run_all([(problem, problem.solved) for problem in problems])
        assert verdicts(solved) == {"passed": len(problems)}
        assert verdicts(own.run_all(empty)) == {"wrong answer": len(problems)}


def test_verdicts_are_named(runner, double):
    for program, verdict, detail in (
        ("def double(n):\n    return 2 * n", V.PASSED, ""),
        ("def double(n):\n    return n + 3", V.WRONG_ANSWER, "double(0) returned 3"),
        ("def double(n):\n    return 1 / n", V.WRONG_ANSWER, "double(3) returned 0.333"),
        ("def double(n):\n    return n * 6 / n", V.EXCEPTION, "ZeroDivisionError: "),
        ("def double(n):\n  return 2 *", V.SYNTAX_ERROR, "SyntaxError: invalid syntax"),
        ("def twice(n):\n    return 2 * n", V.NOT_DEFINED, ""),
        ("import no_such", V.EXCEPTION, "ModuleNotFoundError: No module named 'no_such'"),
        ("def double(n):\n    return double(n)", V.EXCEPTION, "RecursionError: "),
        ("", V.NOT_DEFINED, ""),
        ("\0", V.SYNTAX_ERROR, ""),
        ("def double(n): return 2 * n  # \ud800", V.SYNTAX_ERROR, "UnicodeEncodeError: "),
    ):
        result = runner.run(double, program)
        assert result.verdict is verdict
        assert result.detail.startswith(detail)
        assert result.passed is (verdict is V.PASSED)


def test_a_detail_is_one_printable_line(runner, double):
    """Or a program could clear the screen, write a line such as "right  passed", or stop print."""
    text = r"ValueError: \x1b[2J\nright  passed\ud800"
    result = runner.run(double, f"raise ValueError('{text.partition(': ')[2]}')")
    assert (result.verdict, result.detail) == (V.EXCEPTION, text)


def test_numbers_of_other_libraries_count_and_types_are_kept(runner, double):
    program = "from fractions import Fraction\ndef double(n):\n    return Fraction(2 * n)"
    assert runner.run(double, program).passed
    problem = CodeProblem("pair", "", "pair", "", ("assert pair(1) == (1, 1)",))
    assert runner.run(problem, "def pair(n):\n    return (n, n)").passed
    assert not runner.run(problem, "def pair(n):\n    return [n, n]").passed


def test_hostile_programs_do_not_pass_and_the_runner_still_works(runner, double, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    programs = [text.replace("HOST_FILE", str(secret)) for text, _ in HOSTILE.values()]
    results = runner.run_all([(double, text) for text in [*programs, double.solved]])
    assert results.pop().passed
    found = dict(zip(HOSTILE, results, strict=True))
    wrong = {}
    for name, (_, verdicts) in HOSTILE.items():
        allowed = verdicts if isinstance(verdicts, set) else {verdicts}
        if found[name].verdict not in allowed:
            wrong[name] = found[name]
    assert wrong == {}
    assert secret.read_text() == "secret"


@pytest.mark.exhaustive
def test_a_program_that_ignores_the_end_of_its_time_is_ended(runner, double):
    program = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass"
    assert runner.run(double, program).verdict is V.TIME_LIMIT


def test_time_in_which_a_program_does_not_run_does_not_count(runner, double):
    """A slow machine: the clock goes on, the program's processor time doesn't."""
    waits = runner.limits.cpu_s + 0.3
    program = f"import time\ntime.sleep({waits})\ndef double(n):\n    return 2 * n"
    assert runner.run(double, program).passed


def test_programs_that_wait_are_ended_by_the_clock(double):
    with ProgramRunner(ProgramLimits(cpu_s=1, wall_s=1)) as own:
        result = own.run(double, "import time\ntime.sleep(99)")
    assert (result.verdict, result.detail) == (V.TIME_LIMIT, "1 s")


def test_tests_that_cannot_run_are_errors_and_programs_cannot_make_them_look_broken_or_slow(runner):
    for checks in (("assert f(1) ==",), ("f(print)",), ()):
        problem = CodeProblem("broken", "", "f", "", checks)
        with pytest.raises(ValueError, match="the tests of broken can't run"):
            runner.run(problem, "def f(x):\n    return x")
    # Tests that handle every exception handle the end of the program too.
    problem = CodeProblem("lax", "", "f", "", ("try:\n    f(1)\nexcept:\n    pass\nassert False",))
    assert runner.run(problem, "def f(x):\n    raise KeyError").verdict is V.WRONG_ANSWER
    problem = CodeProblem("slow", "", "f", "", ("n = f(1)\nwhile n: pass",))
    result = runner.run(problem, "def f(x):\n    return x")
    assert (result.verdict, result.detail) == (V.TIME_LIMIT, "in the tests")


def test_without_a_sandbox_nothing_runs(monkeypatch, double):
    state = SandboxState(False, "bubblewrap needs Linux and this is darwin", "use Linux")
    monkeypatch.setattr(program_runner, "probe", lambda: state)
    with pytest.raises(SandboxFailed, match=r"need a sandbox: .*darwin \(use Linux\)\. They are"):
        ProgramRunner().__enter__()


@pytest.mark.parametrize("ended", [False, True])
def test_outside_of_with_there_is_one_clear_error(double, ended):
    own = ProgramRunner()
    if ended:
        with own:
            pass
    with pytest.raises(RuntimeError, match=r"call run and run_all inside `with ProgramRunner\(\)"):
        own.run(double, double.solved)
    with pytest.raises(RuntimeError, match="was not started, or has ended"):
        own.run_all([(double, double.solved)])


def test_bad_input():
    with pytest.raises(ValueError, match="cpu_s must be an integer of at least 1, got 0"):
        ProgramLimits(cpu_s=0)
