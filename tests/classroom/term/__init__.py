"""A whole term with a class that is made up, by the commands that instructors use."""
