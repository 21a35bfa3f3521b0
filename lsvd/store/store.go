// Package store is the object store that disks live in: whole immutable
// objects, created conditionally, and a few small ones that are replaced by
// compare-and-swap.
//
// Implementations: package dir (a directory), package s3 (a bucket), [Mem]
// (memory, for tests and simulation) and [Fault] (a wrapper that injects what
// real stores do wrong).
// Package storetest has the conformance suite that each of them passes.
//
// Errors carry classes of package errs. What a caller may conclude:
//
//	NotFound        looked, and the object does not exist
//	AlreadyExists   Create found an object under the key; it was not touched
//	Conflict        Replace found another version; it was not touched
//	InvalidArgument the key is malformed
//	anything else   the outcome is unknown: the operation may have happened
//
// All methods are safe for concurrent use. List and Get see every write that
// returned before they began.
package store

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/cespare/xxhash/v2"

	"miren.dev/runtime/pkg/errs"
)

// MaxKey is the longest key, in bytes, that every backend takes.
const MaxKey = 512

// Version names one content of one object. It is opaque: compare it for
// equality only. Two equal contents may have equal versions, so a caller that
// must tell them apart puts a counter into the object.
type Version string

// Info is one object of a listing.
type Info struct {
	Key  string
	Size int64
}

// Store is an object store.
type Store interface {
	// Get returns the whole object and its version.
	Get(ctx context.Context, key string) ([]byte, Version, error)
	// GetRange returns n bytes from off. It returns fewer only where the
	// object ends, and InvalidArgument where off is past the end.
	GetRange(ctx context.Context, key string, off, n int64) ([]byte, error)
	// Create makes the object durable, or fails with AlreadyExists.
	Create(ctx context.Context, key string, data []byte) (Version, error)
	// Replace puts data in the place of the version old and makes it
	// durable, or fails with Conflict or NotFound.
	Replace(ctx context.Context, key string, data []byte, old Version) (Version, error)
	// List yields the objects whose key begins with prefix, in key order.
	// It stops after the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete removes the object; that it does not exist is no error.
	Delete(ctx context.Context, key string) error
}

// CheckKey reports a key that is not made of parts of [A-Za-z0-9._-]
// separated by single slashes, none of them beginning with a dot.
func CheckKey(key string) error {
	bad := func(why string) error {
		return errs.New(errs.InvalidArgument, "object key %q: %s", key, why)
	}
	if key == "" || len(key) > MaxKey {
		return bad("must have 1 to 512 bytes")
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part[0] == '.' {
			return bad("has an empty part or one that begins with a dot")
		}
		for _, c := range []byte(part) {
			ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
			if !ok {
				return bad("has a character outside of letters, digits, '.', '_' and '-'")
			}
		}
	}
	return nil
}

// CheckCall reports a key that [CheckKey] refuses, or that ctx has ended.
func CheckCall(ctx context.Context, key string) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	return ctx.Err()
}

// ContentVersion is the version of backends without versions of their own:
// length and hash of the content. What is replaced has a counter in it; the hash need only tell those
// contents apart that one object had.
func ContentVersion(data []byte) Version {
	return Version(fmt.Sprintf("%x-%016x", len(data), xxhash.Sum64(data)))
}
