"""Checks that a report's numbers follow from the records it carries, by building the report again."""
