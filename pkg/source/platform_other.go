//go:build !unix

package source

// openFlags are those of Unix; os.Root keeps a link from leading outside of the source.
const openFlags = 0

// modeBits says that files have permission bits for execution. Without them
// a file's first bytes decide (isProgram).
const modeBits = false
