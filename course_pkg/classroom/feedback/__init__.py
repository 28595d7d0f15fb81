"""What instructors and students see: sanitized outputs, students' pages, and a class report."""
