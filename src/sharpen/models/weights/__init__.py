"""A name to a checkpoint: one reader per file format, the catalog of known files, and how to get them."""
