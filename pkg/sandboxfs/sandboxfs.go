// Package sandboxfs is the interface to the files of a sandbox. It is shared by
// the agent's connection, which implements it, the drivers of package execution,
// and the operations of package sandboxes.
package sandboxfs

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// View says as whom and where files of a sandbox are used.
type View struct {
	User string // user[:group] of the sandbox; empty: the sandbox's
	// Roots are absolute directories outside which nothing is reached, whatever
	// symbolic links are in them; none: every file that User may use.
	Roots []string
}

// Info describes a file of a sandbox.
type Info struct {
	Name    string // the last element of its path
	Mode    fs.FileMode
	Size    int64
	ModTime time.Time
	UID     int
	GID     int
	Target  string // of a symbolic link
	// Attrs are the extended attributes in the name space "user", without that
	// prefix: of a file or directory that the view's user may read, where
	// ListOptions ask for them.
	Attrs map[string][]byte
}

// Space is the room of a file system, for its ordinary users.
type Space struct {
	Bytes, FreeBytes int64
	Files, FreeFiles int64 // 0: it has no bound
}

// Bits returns the permission bits of a mode as chmod has them, with those for
// setuid, setgid and sticky.
func Bits(m fs.FileMode) uint32 {
	p := uint32(m.Perm())
	for bit, f := range special {
		if m&f != 0 {
			p |= bit
		}
	}
	return p
}

// Perm is the reverse of Bits. Other bits are ignored.
func Perm(bits uint32) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	for bit, f := range special {
		if bits&bit != 0 {
			m |= f
		}
	}
	return m
}

var special = map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky}

// WriteMode says how an existing file is treated.
type WriteMode int

// Write modes.
const (
	WriteReplace WriteMode = iota // at the end the new file takes its place, at once; links are replaced, not followed
	WriteCreate                   // AlreadyExists
	WriteAt                       // it is changed from WriteOptions.Offset on
	WriteAppend                   // it is continued
)

// WriteOptions say how a file is written.
type WriteOptions struct {
	Mode    WriteMode
	Offset  int64       // of WriteAt
	Perm    fs.FileMode // of a new file; 0: 0644, or that of the replaced file
	Parents bool        // make missing directories
}

// ListOptions select entries of a directory.
type ListOptions struct {
	After string // only names that follow it
	Limit int    // entries at most; 0, or above 1024: as many as one answer holds
	Attrs bool   // with Info.Attrs
}

// Reader reads a file.
type Reader interface {
	io.ReadCloser
	// Info describes the file when it was opened.
	Info() Info
}

// Writer writes a file. Without Commit, Close leaves nothing of a new file.
type Writer interface {
	io.WriteCloser
	// Commit ends the file and describes it.
	Commit(ctx context.Context) (Info, error)
}

// Extractor takes a tar archive.
type Extractor interface {
	io.WriteCloser
	// Finish waits until everything is unpacked.
	Finish(ctx context.Context) error
}

// Change is the kind of a change.
type Change string

// Changes of files.
const (
	Created    Change = "created" // made, or moved here
	Written    Change = "written"
	Removed    Change = "removed" // removed, or moved away
	Attributes Change = "attributes"
	Missed     Change = "missed" // there were more changes than could be kept: list again
)

// Event is a change below a watched directory.
type Event struct {
	Change Change
	Path   string // from that directory; "." is itself
	Dir    bool
}

// Watcher reports changes. A file in a directory that was just made may be
// reported twice.
type Watcher interface {
	// Next waits for a change. io.EOF when the watched directory is gone.
	Next() (Event, error)
	// Close ends the watch; Next then fails.
	Close() error
}

// FS is the files of a sandbox, which its agent uses with the rights of a
// process of the view's user. A relative path is below the working directory of
// the sandbox. Files of procfs are not reached, nor pipes and devices. Errors:
// NotFound, AlreadyExists, PermissionDenied (also outside the roots),
// InvalidArgument, ResourceExhausted (the disk is full, or another limit),
// Unavailable.
type FS interface {
	// Read reads at most length bytes from offset on; length 0: to the end.
	Read(ctx context.Context, path string, offset, length int64) (Reader, error)
	Write(ctx context.Context, path string, o WriteOptions) (Writer, error)
	// Stat does not follow a symbolic link at the end of the path.
	Stat(ctx context.Context, path string) (Info, error)
	// List returns entries of a directory, by name, and whether there are more.
	List(ctx context.Context, path string, o ListOptions) (list []Info, more bool, err error)
	// Move renames; across file systems it copies. With replace it replaces a file
	// or an empty directory.
	Move(ctx context.Context, from, to string, replace bool) error
	// Copy copies a file or a directory with its files; to must not exist.
	Copy(ctx context.Context, from, to string) error
	// Remove removes a file or an empty directory, recursive any directory.
	Remove(ctx context.Context, path string, recursive bool) error
	// Mkdir makes a directory, with parents also those above it and no error if it
	// exists.
	Mkdir(ctx context.Context, path string, perm fs.FileMode, parents bool) error
	Chmod(ctx context.Context, path string, perm fs.FileMode) error
	// Archive returns a tar of a directory's contents, or of a file. Sockets, pipes
	// and devices are left out.
	Archive(ctx context.Context, path string) (io.ReadCloser, error)
	// Extract unpacks the tar that is written into a directory, which it makes if
	// it is missing. Entries replace files, not directories; their owner is the
	// view's user. No entry gets outside the directory, by whatever name or link:
	// PermissionDenied. Files that were unpacked before an error stay.
	Extract(ctx context.Context, path string) (Extractor, error)
	// Watch reports changes in a directory, recursive also in those below it, at
	// most 4096 of them.
	Watch(ctx context.Context, path string, recursive bool) (Watcher, error)
	// Attrs returns the extended attributes of a file in the name space "user",
	// without that prefix; ResourceExhausted if they have more than 64 KiB.
	Attrs(ctx context.Context, path string) (map[string][]byte, error)
	// SetAttr sets one, or with nil removes it. A name has at most 200 bytes, a value
	// 32 KiB.
	SetAttr(ctx context.Context, path, name string, value []byte) error
	// Symlink makes a symbolic link. Its target is any text.
	Symlink(ctx context.Context, target, path string) error
	// Link gives a file another name, which must not exist.
	Link(ctx context.Context, from, to string) error
	// Chtimes sets the times of the last access and of the last change of the content.
	Chtimes(ctx context.Context, path string, accessed, modified time.Time) error
	// Truncate changes the size of a file.
	Truncate(ctx context.Context, path string, size int64) error
	// Space describes the file system that a path is on.
	Space(ctx context.Context, path string) (Space, error)
}
