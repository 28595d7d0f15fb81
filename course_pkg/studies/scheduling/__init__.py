"""Page: serving/scheduling."""
