package schema

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// MaxSecret bounds the plain text of one secret, in bytes.
const MaxSecret = 64 << 10

const (
	sealVersion = 1
	keyIDLen    = 8
	keyLen      = 32
	maxKeyFile  = 1 << 20
)

// Sealer seals and opens secrets with AES-256-GCM. Its key file has mode 0600
// and a line "<key id> <base64 of 32 bytes>" per key; the last one seals, all
// of them open. The file is made with one key at first use.
//
// A sealed secret is: version byte 1, 8 bytes of key id, 12 of nonce, then
// cipher text and tag. Version and key id are authenticated, and so is the
// associated data if some was given: it must be the same to open.
//
// A Sealer is safe for concurrent use.
type Sealer struct {
	path string

	mu   sync.Mutex
	keys []sealKey // nil until the file was read
}

type sealKey struct {
	id   [keyIDLen]byte
	aead cipher.AEAD
}

// NewSealer returns a Sealer with the key file at path. It does no IO.
func NewSealer(path string) *Sealer { return &Sealer{path: path} }

// SealKeyLen is the length of a key for NewKeySealer, in bytes.
const SealKeyLen = keyLen

// NewKeySealer returns a Sealer with one key, which it keeps in memory only. Its
// length is SealKeyLen; the same key makes an equal Sealer.
func NewKeySealer(key []byte) (*Sealer, error) {
	if len(key) != keyLen {
		return nil, errs.New(errs.InvalidArgument, "a key has %d bytes, not %d", keyLen, len(key))
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(key)
	return &Sealer{path: "memory", keys: []sealKey{{id: [keyIDLen]byte(sum[:keyIDLen]), aead: aead}}}, nil
}

// Seal encrypts plaintext, bound to the associated data ad.
func (s *Sealer) Seal(plaintext string, ad ...string) (Secret, error) {
	if len(plaintext) > MaxSecret {
		return Secret{}, errs.New(errs.InvalidArgument, "the secret has %d bytes, more than %d", len(plaintext), MaxSecret)
	}
	keys, err := s.load()
	if err != nil {
		return Secret{}, err
	}
	k := keys[len(keys)-1]
	out := append([]byte{sealVersion}, k.id[:]...)
	nonce := make([]byte, k.aead.NonceSize())
	rand.Read(nonce) // never fails (crypto/rand)
	bound := associated(out, ad)
	out = append(out, nonce...)
	return Secret{sealed: k.aead.Seal(out, nonce, []byte(plaintext), bound)}, nil
}

// Open decrypts sec. Errors: InvalidArgument if it is not sealed,
// FailedPrecondition if its key is not in the key file, Corrupt if it was
// changed or sealed with other associated data.
func (s *Sealer) Open(sec Secret, ad ...string) (string, error) {
	if !sec.Sealed() {
		return "", errs.New(errs.InvalidArgument, "open secret: %w", errNotSealed)
	}
	b := sec.sealed
	const head = 1 + keyIDLen
	if len(b) < head || b[0] != sealVersion {
		return "", errs.New(errs.Corrupt, "open secret: not of a known format")
	}
	keys, err := s.load()
	if err != nil {
		return "", err
	}
	for _, k := range keys {
		if !bytes.Equal(k.id[:], b[1:head]) {
			continue
		}
		n := k.aead.NonceSize()
		if len(b) < head+n {
			return "", errs.New(errs.Corrupt, "open secret: cut short")
		}
		plain, err := k.aead.Open(nil, b[head:head+n], b[head+n:], associated(b[:head], ad))
		if err != nil {
			return "", errs.New(errs.Corrupt, "open secret: it was changed, or belongs elsewhere")
		}
		return string(plain), nil
	}
	return "", errs.New(errs.FailedPrecondition, "open secret: its key %x is not in %s", b[1:head], s.path).
		WithHint("Restore the key file that was in use when the secret was set, or set the secret again.")
}

// Rotate adds a new key to the file, which seals from now on. Secrets sealed
// before stay readable.
func (s *Sealer) Rotate() error {
	if _, err := s.load(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := os.ReadFile(s.path)
	if err != nil {
		return fmt.Errorf("rotate secret key: %w", err)
	}
	all := append(old, newKeyLine()...)
	keys, err := parseKeys(all)
	if err != nil {
		return err
	}
	if err := writeKeyFile(s.path, all, true); err != nil {
		return fmt.Errorf("rotate secret key: %w", err)
	}
	s.keys = keys
	return nil
}

func associated(head []byte, ad []string) []byte {
	out := bytes.Clone(head)
	for _, a := range ad {
		out = fmt.Appendf(out, "%d:", len(a)) // so that ("ab","c") is not ("a","bc")
		out = append(out, a...)
	}
	return out
}

// load reads the key file once, making it if it does not exist.
func (s *Sealer) load() ([]sealKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys != nil {
		return s.keys, nil
	}
	b, err := readKeyFile(s.path)
	if errors.Is(err, os.ErrNotExist) {
		if err = writeKeyFile(s.path, newKeyLine(), false); err == nil || errors.Is(err, os.ErrExist) {
			b, err = readKeyFile(s.path) // written by this process, or by a faster one
		}
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "secret key: %w", err)
	}
	keys, err := parseKeys(b)
	if err != nil {
		return nil, errs.Wrap(err, "secret key file %s", s.path)
	}
	s.keys = keys
	return keys, nil
}

func readKeyFile(path string) ([]byte, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others than its owner (mode %04o); run: chmod 600 %s", path, fi.Mode().Perm(), path)
	}
	if fi.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, fi.Size(), maxKeyFile)
	}
	return os.ReadFile(path)
}

// writeKeyFile writes the file durably, and complete or not at all. Without
// replace an existing file stays as it is and the error is os.ErrExist.
func writeKeyFile(path string, data []byte, replace bool) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if replace {
		return atomicfile.Write(path, data, 0o600)
	}
	return atomicfile.Write(path, data, 0o600, atomicfile.NoReplace)
}

func newKeyLine() []byte {
	var id [keyIDLen]byte
	var key [keyLen]byte
	rand.Read(id[:])
	rand.Read(key[:])
	return fmt.Appendf(nil, "%x %s\n", id, base64.StdEncoding.EncodeToString(key[:]))
}

func parseKeys(b []byte) ([]sealKey, error) {
	var out []sealKey
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var id, key []byte
		idText, keyText, _ := strings.Cut(line, " ")
		if _, err := fmt.Sscanf(idText, "%x", &id); err != nil || len(id) != keyIDLen {
			return nil, errs.New(errs.Corrupt, "line %d: no key id", i+1)
		}
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(keyText))
		if err != nil || len(key) != keyLen {
			return nil, errs.New(errs.Corrupt, "line %d: no key of %d bytes", i+1, keyLen)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err
		}
		k := sealKey{aead: aead}
		copy(k.id[:], id)
		out = append(out, k)
	}
	if len(out) == 0 {
		return nil, errs.New(errs.Corrupt, "it has no key")
	}
	return out, nil
}
