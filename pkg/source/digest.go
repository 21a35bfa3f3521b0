package source

import "miren.dev/runtime/pkg/errs"

// ParseDigest returns s as a digest. InvalidArgument if it does not have the
// form of one.
func ParseDigest(s string) (Digest, error) {
	d := Digest(s)
	if !d.Valid() {
		return "", errs.New(errs.InvalidArgument, "%q is not the digest of a source", s)
	}
	return d, nil
}
