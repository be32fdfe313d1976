import sys

from residual_hf_cli import main

sys.exit(main())
