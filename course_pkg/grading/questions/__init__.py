"""What a question is, what passes between an answer and its verdict, and how a verdict is made."""
