"""Virtual hosts: each runs the program in a process of its own; they meet where real hosts would."""
