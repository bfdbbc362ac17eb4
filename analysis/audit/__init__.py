"""Whether a report's numbers follow from the records that it carries: it is rebuilt and compared."""
