"""Writes the sentences of a report's answer from verdicts and outcomes computed elsewhere. Pure."""
