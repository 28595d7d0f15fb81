"""What code says, without its words, and which code can run: what makes a result out of date."""
