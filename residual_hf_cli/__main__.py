import sys

from residual_hf_cli import main

if __name__ == "__main__":  # not in a worker of a data loader, which runs this file again
    sys.exit(main())
