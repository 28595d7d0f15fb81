"""Grade the attacks without an up-to-date row in stock.json with stock nbgrader, in a sandbox."""

from tests.grading.stock import main

main()
