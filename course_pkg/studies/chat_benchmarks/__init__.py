"""Chat benchmarks: conversations, pairwise judging, win rates, Bradley–Terry, Elo, length control.

>>> from course_pkg.studies.chat_benchmarks import win_rate
>>> print(win_rate([1, 0.5, 1, 0, 1, 1]).interval)
0.750 [0.311, 1.000]
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.studies.chat_benchmarks.chat_questions": "ChatQuestion load_chat_questions",
    "course_pkg.studies.chat_benchmarks.conversations": (
        "Conversation greedy_writer hold_conversations reference_conversations server_writer"
    ),
    "course_pkg.studies.chat_benchmarks.verdicts": "parse_grade parse_verdict",
    "course_pkg.studies.chat_benchmarks.judging": (
        "compare_all compare_conversations grade_conversation question_text answer_text"
    ),
    "course_pkg.studies.chat_benchmarks.win_rates": "WinRate win_rate",
    "course_pkg.studies.chat_benchmarks.matches": "Comparison Match matches_of names_of",
    "course_pkg.studies.chat_benchmarks.bt_model": "BradleyTerry bootstrap_strengths bradley_terry",
    "course_pkg.studies.chat_benchmarks.elo": "EloRatings elo_by_order elo_ratings",
    "course_pkg.studies.chat_benchmarks.length_control": (
        "LengthControl instruction_difficulty length_controlled_win_rate length_term"
    ),
    "course_pkg.studies.chat_benchmarks.judge_measures": "JudgeBias judge_bias",
    "course_pkg.studies.chat_benchmarks.simulated_judge": (
        "SimulatedJudge simulate_comparisons true_win_rate"
    ),
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
