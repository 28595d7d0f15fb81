"""What students handed in, read as hostile: names, folders, zips, and the notebooks in them."""
