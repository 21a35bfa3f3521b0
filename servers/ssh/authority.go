package sshserver

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// Values of rpc.Identity.How for SSH.
const (
	HowKey         = "ssh key"         // Serial is the fingerprint of the key
	HowCertificate = "ssh certificate" // Serial is that of the TLS certificate with which it was asked for
)

// identityOption is the critical option of user certificates that holds the
// identity. Another SSH server refuses a certificate with an option that it does
// not know.
const identityOption = "identity@runtime.miren.dev"

// skew is the largest difference between the clocks of two machines.
const skew = time.Minute

// Authority holds the private keys of the SSH server of one installation: its
// host keys, which SetHostKeys sets, and the key that signs user certificates. It
// is safe for concurrent use.
//
// The latter is a file with mode 0600 in a directory of mode 0700, in OpenSSH's
// format:
//
//	<dir>/user_ca        made at first start
type Authority struct {
	users ssh.Signer
	host  atomic.Pointer[hostKeys] // nil: not set yet
}

// OpenAuthority reads the key below dir, and makes it if it is missing.
func OpenAuthority(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "SSH keys: %w", err)
	}
	users, err := openKey(filepath.Join(dir, "user_ca"))
	if err != nil {
		return nil, err
	}
	return &Authority{users: users}, nil
}

// openKey reads a private key, or makes it.
func openKey(path string) (ssh.Signer, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		b, err = makeKey(path)
	}
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "SSH key: %w", err)
	}
	s, err := ssh.ParsePrivateKey(b)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "SSH key %s: %w", path, err).WithHint("restore the file; without it the server makes another key, and certificates of the old one are refused")
	}
	return s, nil
}

func makeKey(path string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return nil, err
	}
	b := pem.EncodeToMemory(block)
	return b, atomicfile.Write(path, b, 0o600)
}

// line returns a key as in a .pub file, without comment.
func line(k ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))) }

// holder is the identity that a user certificate stands for, as the certificate
// holds it.
type holder struct {
	Name    string    `json:"name"`
	Roles   []string  `json:"roles"`
	Serial  string    `json:"serial,omitempty"`
	Key     string    `json:"key,omitempty"` // of the API, with which it was asked for
	Expires time.Time `json:"expires,omitzero"`
}

// Issue makes a certificate with which the holder of a key can log in to one
// sandbox until life has passed, or the identity expires. It returns the
// certificate as in a -cert.pub file, and its expiry.
func (a *Authority) Issue(key ssh.PublicKey, sandbox string, id rpc.Identity, life time.Duration) (string, time.Time, error) {
	option, err := json.Marshal(holder{Name: id.Name, Roles: id.Roles, Serial: id.Serial, Key: id.Key, Expires: id.Expires})
	if err != nil {
		return "", time.Time{}, err
	}
	now := time.Now()
	end := now.Add(life)
	if !id.Expires.IsZero() && id.Expires.Before(end) {
		end = id.Expires
	}
	var serial [8]byte
	if _, err := rand.Read(serial[:]); err != nil {
		return "", time.Time{}, err
	}
	c := &ssh.Certificate{
		Key: key, Serial: binary.BigEndian.Uint64(serial[:]), CertType: ssh.UserCert, KeyId: id.Name, ValidPrincipals: []string{sandbox},
		ValidAfter: uint64(now.Add(-skew).Unix()), ValidBefore: uint64(end.Unix()),
		Permissions: ssh.Permissions{
			CriticalOptions: map[string]string{identityOption: string(option)},
			Extensions:      map[string]string{"permit-pty": "", "permit-port-forwarding": ""},
		},
	}
	if err := c.SignCert(rand.Reader, a.users); err != nil {
		return "", time.Time{}, err
	}
	return line(c), end, nil
}

// identity returns the identity of a user certificate for a sandbox.
func (a *Authority) identity(c *ssh.Certificate, sandbox string) (rpc.Identity, error) {
	checker := ssh.CertChecker{SupportedCriticalOptions: []string{identityOption}}
	if c.CertType != ssh.UserCert || string(c.SignatureKey.Marshal()) != string(a.users.PublicKey().Marshal()) || len(c.ValidPrincipals) != 1 {
		return rpc.Identity{}, errs.New(errs.Unauthenticated, "the certificate is not of this installation")
	}
	if err := checker.CheckCert(sandbox, c); err != nil {
		return rpc.Identity{}, errs.New(errs.Unauthenticated, "%w", err)
	}
	var h holder
	if err := json.Unmarshal([]byte(c.CriticalOptions[identityOption]), &h); err != nil {
		return rpc.Identity{}, errs.New(errs.Unauthenticated, "the certificate names no identity: %w", err)
	}
	return rpc.Identity{Name: h.Name, Roles: h.Roles, How: HowCertificate, Serial: h.Serial, Key: h.Key, Expires: h.Expires}, nil
}
