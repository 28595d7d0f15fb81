"""Acting on a world: tasks in a small home, calls of mock APIs, and what to measure in both.

>>> from course_pkg.evaluation.agents import draw_tasks, run_plan, score_episode
>>> task = draw_tasks(1)[0]
>>> score_episode(run_plan(task, ["go to bedroom", "switch on lamp"])).success
1.0
"""

from course_pkg.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.evaluation.agents.home": (
        "FIXTURES HAND OBJECTS ROOMS Fixture Home describe describe_room draw_home"
    ),
    "course_pkg.evaluation.agents.home_actions": (
        "Action ActionError action_pattern admissible grammar parse_action perform"
    ),
    "course_pkg.evaluation.agents.home_tasks": "Goal HomeTask draw_tasks shortest_plan",
    "course_pkg.evaluation.agents.episode": (
        "Environment Episode Policy Step plan_lines run_episode run_plan"
    ),
    "course_pkg.evaluation.agents.plan_scores": (
        "AlfredSummary EpisodeScore alfred_summary plan_similarity score_episode"
    ),
    "course_pkg.evaluation.agents.baselines": (
        "chance_with_feedback chance_without_feedback random_policy replan slipping"
    ),
    "course_pkg.evaluation.agents.home_prompts": (
        "example_tasks plan_pattern plan_prompt step_pattern step_prompt"
    ),
    "course_pkg.evaluation.agents.api_calls": (
        "Api ApiCall CallError call_guide call_schema check_call extract_call"
    ),
    "course_pkg.evaluation.agents.mock_apis": "Outcome known_apis run_calls",
    "course_pkg.evaluation.agents.api_dialogues": (
        "ApiDialogue call_prompt load_dialogues play_calls reply_prompt"
    ),
    "course_pkg.evaluation.agents.api_scores": "CallsScore score_calls score_reply",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
