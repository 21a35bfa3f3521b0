//go:build !unix

package source

// openFlags need nothing more here; os.Root keeps a link from leading outside the source.
const openFlags = 0

// modeBits reports that files have permission bits for execution. Without them
// a file's first bytes decide (isProgram).
const modeBits = false
