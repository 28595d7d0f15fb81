"""Run the attacks that have no true row in stock.json through stock nbgrader, confined."""

from tests.grading.stock import main

main()
