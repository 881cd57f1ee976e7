"""Training configurations of other frameworks, read as they are for `plan` and `advise`."""
