"""Many runs from one command: compose all, check all, then run each in a process of its own."""
