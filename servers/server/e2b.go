package server

import (
	"context"
	"crypto/rand"
	"errors"
	"os"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/e2b"
)

// newE2B returns the face for E2B's clients, and mounts it on the HTTP API.
func (f *front) newE2B() (*e2b.Server, error) {
	s, err := e2b.New(e2b.Config{
		Authenticate: func(ctx context.Context, key string) (*e2b.Caller, error) {
			c, err := f.api.Authenticate(ctx, key)
			if err != nil {
				return nil, err
			}
			return &e2b.Caller{Conn: c.Client, Project: c.Project(), Release: c.Release}, nil
		},
		Guest: f.rpc.Local(e2b.GuestIdentity), Key: f.tokenKey, Uploads: f.c.m.in.State("e2b-uploads"), Logger: f.c.logger.With("component", "e2b"),
	})
	if err != nil {
		return nil, err
	}
	f.api.Intercept("e2b", e2b.Matches, s)
	return s, nil
}

// keySize is the size of the key of tokens, in bytes.
const keySize = 32

// tokenKey reads the key with which tokens of sandboxes are made, and makes it
// at first use.
func tokenKey(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	switch {
	case err == nil && len(key) == keySize:
		return key, nil
	case err == nil:
		return nil, errs.New(errs.Corrupt, "%s has %d bytes, not %d", path, len(key), keySize).
			WithHint("remove it: a new one is made, and clients of E2B connect to their sandboxes again")
	case !errors.Is(err, os.ErrNotExist):
		return nil, errs.New(errs.Unavailable, "key of tokens: %w", err)
	}
	key = make([]byte, keySize)
	rand.Read(key) // never fails (crypto/rand)
	if err := atomicfile.Write(path, key, 0o600); err != nil {
		return nil, errs.New(errs.Unavailable, "key of tokens: %w", err)
	}
	return key, nil
}
