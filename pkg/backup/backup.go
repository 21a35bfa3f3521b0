// Package backup reads and writes the file of a backup: entries with names, in a
// tar stream that is compressed and may be encrypted.
//
//	about.json   first: what is saved, and when (About)
//	...          the entries
//	sums.json    last: SHA-256 and size of every entry before it
//
// A file without its last entry, or with an entry that differs from its sum, is
// corrupt. The encryption is that of age, so its tools can decrypt the file too; it
// also detects a change of any byte.
package backup

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"miren.dev/runtime/pkg/errs"
)

// Format is the version of the file that this program writes and reads.
const Format = 1

// Names of the first and the last entry.
const (
	aboutName = "about.json"
	sumsName  = "sums.json"
)

// maxMeta bounds the bytes of about.json and of sums.json that a reader accepts.
const maxMeta = 256 << 20

// magic begins an encrypted file.
const magic = "age-encryption.org/"

// About says what a backup has.
type About struct {
	Format   int       `json:"format"`
	Version  string    `json:"version"` // of the program that made it
	Instance string    `json:"instance"`
	StateDir string    `json:"state_dir"`
	Time     time.Time `json:"time"`
	Store    string    `json:"store"`    // how entities are saved
	Revision int64     `json:"revision"` // of the store
	History  bool      `json:"history"`  // with audit, executions and network requests
	Disks    bool      `json:"disks"`    // with the disks of the state directory
}

type sum struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// Writer writes a backup. Its caller calls Close at the end; without it the file is
// incomplete, and readers refuse it.
type Writer struct {
	tar  *tar.Writer
	ends []io.Closer // of tar, compression and encryption, in this order
	sums map[string]sum
	time time.Time
}

// NewWriter begins a backup, encrypted for the recipients if there are any.
func NewWriter(w io.Writer, about About, recipients ...age.Recipient) (*Writer, error) {
	b := &Writer{sums: map[string]sum{}, time: about.Time}
	if len(recipients) > 0 {
		e, err := age.Encrypt(w, recipients...)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "encrypt the backup: %w", err)
		}
		b.ends, w = []io.Closer{e}, e
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, errs.New(errs.Internal, "compress the backup: %w", err)
	}
	b.tar = tar.NewWriter(z)
	b.ends = append([]io.Closer{b.tar, z}, b.ends...)
	about.Format = Format
	return b, b.meta(aboutName, about)
}

func (b *Writer) meta(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return errs.New(errs.Internal, "%s: %w", name, err)
	}
	return b.Add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(text))}, bytes.NewReader(text))
}

// Add adds an entry; r has the content of a file, exactly as many bytes as the
// header says.
func (b *Writer) Add(h *tar.Header, r io.Reader) error {
	if h.ModTime.IsZero() {
		h.ModTime = b.time
	}
	h.Format = tar.FormatPAX
	if err := b.tar.WriteHeader(h); err != nil {
		return writeError(h.Name, err)
	}
	digest := sha256.New()
	digest.Write([]byte(h.Linkname))
	if h.Typeflag == tar.TypeReg {
		n, err := io.Copy(io.MultiWriter(b.tar, digest), io.LimitReader(r, h.Size))
		if err != nil {
			return writeError(h.Name, err)
		}
		if n != h.Size {
			return errs.New(errs.FailedPrecondition, "%s became shorter while it was saved", h.Name).WithHint("stop what writes to it, and repeat the backup")
		}
	}
	b.sums[h.Name] = sum{hex.EncodeToString(digest.Sum(nil)), h.Size}
	return nil
}

// Close writes the sums and ends the backup.
func (b *Writer) Close() error {
	err := b.meta(sumsName, b.sums)
	for _, c := range b.ends {
		if err == nil {
			err = c.Close()
		}
	}
	if err != nil {
		return writeError("its end", err)
	}
	return nil
}

func writeError(what string, err error) error {
	return errs.New(errs.Unavailable, "write the backup: %s: %w", what, err)
}

// Read reads a backup and calls f for each entry; f need not read it to the end.
// When Read returns nil, every entry was as it was written, and none is missing.
// Until then f must not rely on what it got. Errors: those of f; PermissionDenied:
// the identities do not decrypt it; Corrupt; FailedPrecondition: another format.
func Read(r io.Reader, identities []age.Identity, f func(about *About, h *tar.Header, r io.Reader) error) (*About, error) {
	br := bufio.NewReaderSize(r, 1<<20)
	r = br
	if start, _ := br.Peek(len(magic)); string(start) == magic {
		if len(identities) == 0 {
			return nil, errs.New(errs.PermissionDenied, "the backup is encrypted").WithHint("give its key: --identity FILE or --passphrase-file FILE")
		}
		var err error
		if r, err = age.Decrypt(br, identities...); err != nil {
			return nil, errs.New(errs.PermissionDenied, "decrypt the backup: %w", err).WithHint("give the key that it was made for")
		}
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, corrupt("%w", err)
	}
	defer z.Close()
	var about *About
	sums := map[string]sum{}
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil, corrupt("its last entry is missing")
		}
		if err != nil {
			return nil, corrupt("%w", err)
		}
		switch {
		case h.Name == sumsName:
			if err := compare(tr, sums); err != nil {
				return nil, err
			}
			// What encrypts and compresses has sums of its own, at its end.
			if _, err := tr.Next(); !errors.Is(err, io.EOF) {
				return nil, corrupt("it continues after its last entry: %v", err)
			}
			if _, err := io.Copy(io.Discard, z); err != nil {
				return nil, corrupt("%w", err)
			}
			if about == nil {
				return nil, corrupt("its first entry is missing")
			}
			return about, nil
		case !filepath.IsLocal(h.Name):
			return nil, corrupt("an entry is called %q", h.Name)
		}
		digest := sha256.New()
		digest.Write([]byte(h.Linkname))
		body := io.TeeReader(tr, digest)
		if about == nil {
			about = &About{}
			if err := readMeta(body, aboutName, h, about); err != nil {
				return nil, err
			}
		} else if err := f(about, h, body); err != nil {
			return nil, err
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			return nil, corrupt("%s: %w", h.Name, err)
		}
		if _, twice := sums[h.Name]; twice {
			return nil, corrupt("it has %s twice", h.Name)
		}
		sums[h.Name] = sum{hex.EncodeToString(digest.Sum(nil)), h.Size}
	}
}

func corrupt(format string, args ...any) error {
	return errs.New(errs.Corrupt, "the backup is damaged: "+format, args...).WithHint("use another backup, or copy this one again")
}

func readMeta(r io.Reader, name string, h *tar.Header, about *About) error {
	if h.Name != name {
		return corrupt("it begins with %q", h.Name)
	}
	if err := json.NewDecoder(io.LimitReader(r, maxMeta)).Decode(about); err != nil {
		return corrupt("%s: %w", name, err)
	}
	if about.Format != Format {
		return errs.New(errs.FailedPrecondition, "the backup has format %d, and this program reads format %d", about.Format, Format).
			WithHint("restore it with runtime %s, which made it", about.Version)
	}
	return nil
}

func compare(r io.Reader, have map[string]sum) error {
	var want map[string]sum
	if err := json.NewDecoder(io.LimitReader(r, maxMeta)).Decode(&want); err != nil {
		return corrupt("%s: %w", sumsName, err)
	}
	for name, s := range want {
		if have[name] != s {
			return corrupt("%s is not as it was saved", name)
		}
	}
	if len(have) != len(want) {
		return corrupt("it has %d entries, and its sums are of %d", len(have), len(want))
	}
	return nil
}

// AddTree adds the directories, files and symbolic links below dir, under a prefix.
// skip decides by the path in dir what is left out, with what is below it; sockets
// and devices are left out too.
func (b *Writer) AddTree(dir, prefix string, skip func(path string) bool) error {
	root := os.DirFS(dir)
	return fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return errs.New(errs.Unavailable, "save %s: %w", path, err)
		}
		if path == "." {
			return nil
		}
		if skip(path) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return errs.New(errs.Unavailable, "save %s: %w", path, err)
		}
		h := &tar.Header{Name: strings.TrimSuffix(prefix, "/") + "/" + path, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
		switch {
		case d.IsDir():
			h.Typeflag = tar.TypeDir
			return b.Add(h, nil)
		case info.Mode()&fs.ModeSymlink != 0:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = fs.ReadLink(root, path); err != nil {
				return errs.New(errs.Unavailable, "save %s: %w", path, err)
			}
			return b.Add(h, nil)
		case !info.Mode().IsRegular():
			return nil
		}
		f, err := root.Open(path)
		if err != nil {
			return errs.New(errs.Unavailable, "save %s: %w", path, err)
		}
		defer f.Close()
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
		return b.Add(h, f)
	})
}

// Check reads a backup and compares it with its sums. Errors: those of Read.
func Check(r io.Reader, identities []age.Identity) (*About, error) {
	return Read(r, identities, func(*About, *tar.Header, io.Reader) error { return nil })
}
