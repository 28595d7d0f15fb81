"""What instructors and students see: sanitized outputs, pages, a class report, files for an LMS."""
