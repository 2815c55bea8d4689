"""``python -m paropt_hpc`` is the command ``paropt``."""

from paropt_hpc.cli import main

if __name__ == "__main__":
    main()
