// RUN: not lane-opt %s -t cuda --split-input-file 2>&1 | filecheck %s
// RUN: not lane-opt %s -t 'cuda{chip=h1000}' --split-input-file 2>&1 | filecheck %s --check-prefix=CHIP

// CHECK: lane-opt: error: the target cuda prints planned schedules, and the module has none: run link,plan before
// CHIP:  lane-opt: error: {{.*}}h1000

func.func @nothing() {
  func.return
}
