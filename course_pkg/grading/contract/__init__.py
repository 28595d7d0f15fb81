"""What a question is, what crosses between an answer and its verdict, and how a verdict is made."""
