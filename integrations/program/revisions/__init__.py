"""A program as it stands in revisions of a git repository, each in a tree of its own."""
