"""What the cases of suites ran, written as their sources say."""
