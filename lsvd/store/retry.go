package store

import "miren.dev/runtime/pkg/errs"

// RetryCorrupt calls f, which reads and decodes an object, up to three times
// while the result is corrupt: the transfer may have been, not the object.
func RetryCorrupt(f func() error) error {
	for try := 0; ; try++ {
		err := f()
		if !errs.Is(err, errs.Corrupt) || try == 2 {
			return err
		}
	}
}
