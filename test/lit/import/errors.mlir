// One line, exit status 1 (2 for usage), no traceback, no output.
// RUN: not lane-import %S/missing.gguf -o %t.mlir 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not lane-import %s 2>&1 | filecheck %s --check-prefix=MAGIC
// RUN: not lane-import %S/../../data/models/llama-f32.gguf --rows 0 2>&1 | filecheck %s --check-prefix=ROWS
// RUN: not lane-import %S/../../data/models/llama-f32.gguf --context 2 --rows 4 2>&1 | filecheck %s --check-prefix=CONTEXT
// RUN: not lane-import %S/../../data/models/llama-f32.gguf --numerics int4 2>&1 | filecheck %s --check-prefix=USAGE
// RUN: not lane-opt %S/../../data/models/llama-f32.gguf -f 'gguf{rows=4 context=2}' 2>&1 | filecheck %s --check-prefix=FRONTEND
// RUN: not lane-opt %S/../../data/models/llama-f32.gguf -f 'gguf{row=4}' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not ls %t.mlir

// MISSING: lane-import: error: {{.*}}missing.gguf: no such file
// MAGIC: lane-import: error: {{.*}}errors.mlir: {{.*}}not a GGUF file
// ROWS: lane-import: error: rows is 0, expected at least 1
// CONTEXT: lane-import: error: a step of 4 rows does not fit a context of 2 positions
// USAGE: lane-import: error: argument --numerics: invalid choice: 'int4'
// FRONTEND: lane-opt: error: a step of 4 rows does not fit a context of 2 positions
// OPTION: lane-opt: error: unknown option 'row' of frontend gguf; did you mean 'rows'?
