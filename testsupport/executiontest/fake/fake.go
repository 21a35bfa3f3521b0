// Package fake is an execution.Driver for tests, without containers: the machine
// of components/mock with the guest program of executiontest. It passes that
// suite, and can fail on demand.
package fake

import "miren.dev/runtime/components/mock"

// Machine is a machine with sandboxes.
type Machine = mock.Machine

// NewMachine returns an empty one, whose sandboxes have no files.
func NewMachine() *Machine { return NewMachineIn("") }

// NewMachineIn returns one whose sandboxes have their files in a directory.
func NewMachineIn(dir string) *Machine {
	return mock.NewMachine(mock.Config{Program: program, Dir: dir})
}
