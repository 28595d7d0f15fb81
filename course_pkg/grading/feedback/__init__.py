"""What instructors and students see: outputs made fit to show, pages, and the class in numbers."""
