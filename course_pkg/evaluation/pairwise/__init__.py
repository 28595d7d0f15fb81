"""Chat benchmarks: conversations, pairwise judging, win rates, Bradley–Terry, Elo, length control.

>>> from course_pkg.evaluation.pairwise import win_rate
>>> print(win_rate([1, 0.5, 1, 0, 1, 1]).interval)
0.750 [0.311, 1.000]
"""

from course_pkg.lazy import lazy_exports

_FOLDER = "course_pkg.evaluation.pairwise"
_EXPORTS = {
    f"{_FOLDER}.chat_questions": "ChatQuestion load_chat_questions",
    f"{_FOLDER}.conversations": (
        "Conversation greedy_writer hold_conversations reference_conversations server_writer"
    ),
    f"{_FOLDER}.verdicts": "parse_grade parse_verdict",
    f"{_FOLDER}.judging": (
        "Comparison compare_all compare_conversations grade_conversation question_text answer_text"
    ),
    f"{_FOLDER}.win_rates": "WinRate win_rate",
    f"{_FOLDER}.matches": "Match matches_of names_of",
    f"{_FOLDER}.bt_model": "BradleyTerry bootstrap_strengths bradley_terry",
    f"{_FOLDER}.elo": "EloRatings elo_by_order elo_ratings",
    f"{_FOLDER}.length_control": (
        "LengthControl instruction_difficulty length_controlled_win_rate length_term"
    ),
    f"{_FOLDER}.judge_measures": "JudgeBias judge_bias",
    f"{_FOLDER}.simulated_judge": "SimulatedJudge simulate_comparisons true_win_rate",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
