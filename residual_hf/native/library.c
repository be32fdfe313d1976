// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// What Python has to know about a library.

#include "gemm.h"

// INTERFACE is the checksum of native.h.
uint32_t interface_version(void) { return INTERFACE; }

InstructionSet instruction_set(void) { return INSTRUCTION_SET; }

// How many outputs `weights.py` puts together.
int panel_width(void) { return PANEL; }
