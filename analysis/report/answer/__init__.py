"""Answers a study's question: what ran, the verdicts, how runs ended, and what they do not show. Pure."""

from analysis.report.answer.block import AnswerParts, StudyAnswer, answer_study

__all__ = ["AnswerParts", "StudyAnswer", "answer_study"]
