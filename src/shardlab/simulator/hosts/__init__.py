"""Virtual hosts: each runs the program in its own process; they meet where real hosts would."""
