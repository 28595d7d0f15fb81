"""BLEU: n-gram precision with a brevity penalty."""
