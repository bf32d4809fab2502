"""Score a judge on labelled next states: precision of non-zero verdicts, coverage, accuracy and confusion per kind."""
