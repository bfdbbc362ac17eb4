"""The sentences of a report's answer, each made from verdicts and outcomes that others computed. Pure."""
