"""The commands of `neusight`, a file each: their options, and what they print and write."""
