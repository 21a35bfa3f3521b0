package baseimage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/mod/sumdb"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/sumdb/note"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// publicSumDB is the public key of Go's checksum database, as the go command has it built in. It is what makes the
// hash of a toolchain trustworthy: the archive and the database's answer both come from one proxy.
const publicSumDB = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"

// sumDBKey returns the verifier key of the checksum database that the environment names; empty: ask none.
func sumDBKey() (string, error) {
	if strings.Contains(os.Getenv("GONOSUMDB"), toolchainModule) {
		return "", nil
	}
	// GOSUMDB is "off", a name, a key, or a key and a URL.
	db, _, _ := strings.Cut(strings.TrimSpace(os.Getenv("GOSUMDB")), " ")
	switch db {
	case "off":
		return "", nil
	case "", "sum.golang.org":
		return publicSumDB, nil
	}
	if _, err := note.NewVerifier(db); err != nil {
		return "", errs.New(errs.InvalidArgument, "GOSUMDB=%q is no key of a checksum database: %w", db, err).
			WithHint("unset it, or set it to <name>+<hash>+<key>")
	}
	return db, nil
}

// checkGoSum compares a module's archive with the checksum database. Every answer of the database is proven to be in
// its signed tree, and the tree to contain the one seen before, which is kept in dir.
// Corrupt if the archive is another one or the proof fails, Unavailable if the database cannot be asked.
func checkGoSum(ctx context.Context, proxy, dir, version, archive string) error {
	key, err := sumDBKey()
	if err != nil || key == "" {
		return err
	}
	sum, err := dirhash.HashZip(archive, dirhash.Hash1)
	if err != nil {
		return errs.New(errs.Corrupt, "Go %s: %w", version, err)
	}
	name, _, _ := strings.Cut(key, "+")
	ops := &sumDBOps{ctx: ctx, proxy: proxy, name: name, key: key, dir: filepath.Join(dir, "sumdb")}
	lines, err := sumdb.NewClient(ops).Lookup(toolchainModule, version)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case ops.alarm != "":
		return errs.New(errs.Corrupt, "the checksum database contradicts itself: %s", ops.alarm).
			WithHint("a program between this machine and %s may be changing the downloads", name)
	case err != nil && ops.unreachable != nil:
		return errs.New(errs.Unavailable, "ask the checksum database %s: %w", name, ops.unreachable).
			WithHint("set GOSUMDB=off to trust the module proxy alone")
	case err != nil:
		return errs.New(errs.Corrupt, "checksum database %s: %w", name, err)
	}
	want := toolchainModule + " " + version + " " + sum
	for _, l := range lines {
		if l == want {
			return nil
		}
	}
	return errs.New(errs.Corrupt, "Go %s is not what the checksum database knows", version)
}

// sumDBOps provides sumdb.Client with the network and with files for its state.
type sumDBOps struct {
	ctx         context.Context
	proxy, name string
	key, dir    string

	mu          sync.Mutex
	unreachable error  // error of the last request
	alarm       string // why the database's answers cannot be trusted
}

// ReadRemote asks the proxy's copy of the database, else the database itself.
func (o *sumDBOps) ReadRemote(path string) ([]byte, error) {
	b, err := fetchText(o.ctx, o.proxy+"/sumdb/"+o.name+path)
	if err != nil {
		b, err = fetchText(o.ctx, "https://"+o.name+path)
	}
	if err != nil {
		o.mu.Lock()
		o.unreachable = err
		o.mu.Unlock()
	}
	return b, err
}

// ReadConfig returns the key, or the last signed tree (empty at first).
func (o *sumDBOps) ReadConfig(file string) ([]byte, error) {
	if file == "key" {
		return []byte(o.key), nil
	}
	b, err := os.ReadFile(o.path(file))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// WriteConfig replaces a file if it is unchanged since it was read.
func (o *sumDBOps) WriteConfig(file string, old, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, err := o.ReadConfig(file)
	if err != nil {
		return err
	}
	if string(now) != string(old) {
		return sumdb.ErrWriteConflict
	}
	path := o.path(file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o644)
}

// ReadCache and WriteCache keep nothing: a toolchain is looked up once.
func (o *sumDBOps) ReadCache(string) ([]byte, error) { return nil, os.ErrNotExist }

// WriteCache implements sumdb.ClientOps.
func (o *sumDBOps) WriteCache(string, []byte) {}

// Log implements sumdb.ClientOps.
func (o *sumDBOps) Log(string) {}

// SecurityError is called when the database's answers contradict each other.
func (o *sumDBOps) SecurityError(msg string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.alarm = msg
}

// path returns the path of a configuration file. The client chooses the name,
// so it must stay below dir.
func (o *sumDBOps) path(file string) string { return filepath.Join(o.dir, filepath.FromSlash(file)) }
