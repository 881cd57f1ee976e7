"""A person's submissions and progress, kept in SQLite. The only SQL in the house is here."""
