"""The course: audit of problems, the practice session, the progress store."""
