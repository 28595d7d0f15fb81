"""Acting on a world: tasks in a small home, calls of mock APIs, and what to measure in both.

>>> from course_pkg.studies.environments_and_tools import draw_tasks, run_plan, score_episode
>>> task = draw_tasks(1)[0]
>>> score_episode(run_plan(task, ["go to bedroom", "switch on lamp"])).success
1.0
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.studies.environments_and_tools.home": (
        "FIXTURES HAND OBJECTS ROOMS Fixture Home describe describe_room draw_home"
    ),
    "course_pkg.studies.environments_and_tools.home_actions": (
        "Action ActionError action_pattern admissible grammar parse_action perform"
    ),
    "course_pkg.studies.environments_and_tools.home_tasks": (
        "Goal HomeTask draw_tasks shortest_plan"
    ),
    "course_pkg.studies.environments_and_tools.episode": (
        "Environment Episode Policy Step plan_lines run_episode run_plan"
    ),
    "course_pkg.studies.environments_and_tools.plan_scores": (
        "AlfredSummary EpisodeScore alfred_summary plan_similarity score_episode"
    ),
    "course_pkg.studies.environments_and_tools.baselines": (
        "chance_with_feedback chance_without_feedback random_policy replan slipping"
    ),
    "course_pkg.studies.environments_and_tools.home_prompts": (
        "example_tasks plan_pattern plan_prompt step_pattern step_prompt"
    ),
    "course_pkg.studies.environments_and_tools.api_calls": (
        "Api ApiCall CallError call_guide call_schema check_call extract_call"
    ),
    "course_pkg.studies.environments_and_tools.mock_apis": "Outcome known_apis run_calls",
    "course_pkg.studies.environments_and_tools.api_dialogues": (
        "ApiDialogue call_prompt load_dialogues play_calls reply_prompt"
    ),
    "course_pkg.studies.environments_and_tools.api_scores": "CallsScore score_calls score_reply",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
