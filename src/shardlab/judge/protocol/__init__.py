"""What travels between the judge and the processes it confines. Never pickle, never trusted."""
