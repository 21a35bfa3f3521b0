//go:build !linux

package sandboxes

// printedFilter is empty: only the sandboxes of a mock server are on such a machine.
const printedFilter = ""
