"""Where clients live and work: in this process, in a pool of processes, or on other machines."""
