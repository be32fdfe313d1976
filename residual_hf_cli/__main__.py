# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
import sys

from . import main

sys.exit(main())
