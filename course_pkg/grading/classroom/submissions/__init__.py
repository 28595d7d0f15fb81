"""Reading what students submitted, which is untrusted: folders, zips, names and notebooks."""
