package main

// limitMemory keeps the shim small: there is one per sandbox, and it is idle nearly always.
func limitMemory() {
}

// memoryEnv is set for shim processes.
var memoryEnv = []string{"GOMAXPROCS=2"}
