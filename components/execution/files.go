package execution

import "miren.dev/runtime/pkg/sandboxfs"

// FileDriver is a Driver that reaches the files of sandboxes.
type FileDriver interface {
	// Files returns the files of a sandbox; the calls find out whether it runs.
	Files(id string, v sandboxfs.View) sandboxfs.FS
}
