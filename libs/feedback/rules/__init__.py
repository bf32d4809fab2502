"""The parts of the rules judge: language files, clauses, repeated requests, tool results, targets, hints."""
