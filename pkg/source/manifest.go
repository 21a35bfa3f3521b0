package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	"miren.dev/runtime/pkg/errs"
)

// Digest is a SHA-256 in lower-case hex.
type Digest string

// Valid reports whether d has the form of a digest.
func (d Digest) Valid() bool {
	return len(d) == 64 && strings.Trim(string(d), "0123456789abcdef") == ""
}

func digestOf(b []byte) Digest {
	s := sha256.Sum256(b)
	return Digest(hex.EncodeToString(s[:]))
}

// Mode is the part of a file's mode that a manifest keeps.
type Mode string

// Modes.
const (
	Regular    Mode = "file"
	Executable Mode = "exec"
	Symlink    Mode = "link"
)

// File is one entry.
type File struct {
	Path   string `json:"path"` // slash-separated, below the root
	Mode   Mode   `json:"mode"`
	Size   int64  `json:"size,omitempty"`
	Digest Digest `json:"sha256,omitempty"` // content of Regular and Executable
	Target string `json:"target,omitempty"` // target of Symlink
}

// Manifest is a source folder, its files sorted by path.
type Manifest struct {
	Files []File `json:"files"`
}

// Encode returns the encoding, which is the same for equal manifests.
func (m *Manifest) Encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil, errs.New(errs.Internal, "encode manifest: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Bytes returns the size of all contents together, in bytes.
func (m *Manifest) Bytes() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Decode reads and validates an encoded manifest.
func Decode(b []byte, limits Limits) (*Manifest, error) {
	limits = limits.orDefault()
	if len(b) > maxManifest {
		return nil, errs.New(errs.ResourceExhausted, "manifest of %d bytes is larger than %d", len(b), maxManifest)
	}
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, errs.New(errs.InvalidArgument, "decode manifest: %w", err)
	}
	if d.More() {
		return nil, errs.New(errs.InvalidArgument, "decode manifest: more than one value")
	}
	if err := m.Validate(limits); err != nil {
		return nil, err
	}
	return &m, nil
}

// maxManifest bounds an encoded manifest, in bytes.
const maxManifest = 64 << 20

// Bounds of a path and of one of its elements, in bytes, as file systems have
// them.
const (
	maxPath    = 4095 - 512 // leaves room for the directory in which it is laid out
	maxElement = 255
)

// Validate reports whether a manifest is safe to lay out: every path stays
// below the root, whatever links there are, and appears once.
func (m *Manifest) Validate(limits Limits) error {
	limits = limits.orDefault()
	if len(m.Files) > limits.Files {
		return errs.New(errs.ResourceExhausted, "the source has %d files, at most %d are allowed", len(m.Files), limits.Files).
			WithHint("ignore what is not needed in .gitignore or .dockerignore")
	}
	leaves := make(map[string]bool, len(m.Files))
	var total int64
	for i, f := range m.Files {
		bad := func(format string, args ...any) error {
			return errs.New(errs.InvalidArgument, "manifest entry %q: "+format, append([]any{f.Path}, args...)...)
		}
		if !validPath(f.Path) {
			return bad("not a path below the root")
		}
		if i > 0 && m.Files[i-1].Path >= f.Path {
			return bad("not in order after %q", m.Files[i-1].Path)
		}
		leaves[f.Path] = true
		switch f.Mode {
		case Regular, Executable:
			if f.Target != "" {
				return bad("a file with a target")
			}
			if !f.Digest.Valid() {
				return bad("digest %q", f.Digest)
			}
			if f.Size < 0 || f.Size > limits.FileBytes {
				return errs.New(errs.ResourceExhausted, "%s has %d bytes, at most %d are allowed in one file", f.Path, f.Size, limits.FileBytes)
			}
			if total += f.Size; total > limits.Bytes {
				return errs.New(errs.ResourceExhausted, "the source has more than %d bytes", limits.Bytes).
					WithHint("ignore what is not needed in .gitignore or .dockerignore")
			}
		case Symlink:
			if f.Size != 0 || f.Digest != "" {
				return bad("a link with content")
			}
			if !confined(f.Path, f.Target) {
				return bad("its target %q is not inside the source", f.Target)
			}
		default:
			return bad("mode %q", f.Mode)
		}
	}
	for _, f := range m.Files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if leaves[dir] {
				return errs.New(errs.InvalidArgument, "manifest entry %q: %q is not a folder", f.Path, dir)
			}
		}
	}
	return nil
}

// validPath accepts relative, clean paths of elements that any file system
// accepts, outside the folders of version control (in any case: some file
// systems ignore case).
func validPath(p string) bool {
	if !fs.ValidPath(p) || p == "." || len(p) > maxPath || !utf8.ValidString(p) || strings.ContainsRune(p, 0) {
		return false
	}
	for e := range strings.SplitSeq(p, "/") {
		if len(e) > maxElement || strings.EqualFold(e, ".git") {
			return false
		}
	}
	return true
}

// confined reports whether a link leads to a place below the root, whatever
// other links do: its target climbs only at its beginning, no higher than the
// root. Validate has checked that the link's folder is a real one, so each ".."
// climbs exactly one level.
func confined(link, target string) bool {
	if target == "" || len(target) > maxPath || path.IsAbs(target) || !utf8.ValidString(target) || strings.ContainsRune(target, 0) {
		return false
	}
	depth, down := strings.Count(link, "/"), false
	for e := range strings.SplitSeq(target, "/") {
		switch {
		case e == "" || e == ".":
		case e == "..":
			if depth--; down || depth < 0 {
				return false
			}
		case strings.EqualFold(e, ".git") || len(e) > maxElement:
			return false
		default:
			down = true
		}
	}
	return true
}
