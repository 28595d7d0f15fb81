"""The companion package of the course: one readable, tested definition per concept.

Importing it costs nothing. Each module imports the heavy libraries that it needs, so
`import course_pkg` stays instant and `from course_pkg.lm.load import load` pays for torch.
"""

__version__ = "1.0.0"
