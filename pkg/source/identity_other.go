//go:build !linux && !darwin

package source

import "io/fs"

// identity never knows: without a change time, a file could have another
// content and still look the same. Every file is read again.
func identity(fs.FileInfo) (cached, bool) { return cached{}, false }
