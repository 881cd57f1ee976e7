"""Accounts, sessions, tokens and classes of server mode. No HTTP here: pages and API call it."""
