package agentproto

import (
	"bufio"
	"encoding/binary"
	"io"
)

// View says who works on files, and where.
type View struct {
	User  string   // user[:group] of the sandbox; empty: the configured one
	Roots []string // absolute directories; none: all files
}

func (m View) append(b []byte) []byte { return putStrings(putString(b, m.User), m.Roots) }

func (d *decoder) view() View { return View{User: d.string(), Roots: d.strings()} }

// FileRead is the request of a channel of KindRead. Opened carries FileInfo.
type FileRead struct {
	View   View
	Path   string
	Offset int64
	Length int64 // at most; 0: to the end
}

// Append appends the message to b.
func (m FileRead) Append(b []byte) []byte {
	b = putString(m.View.append(b), m.Path)
	return putInt(putInt(b, m.Offset), m.Length)
}

// DecodeFileRead is the reverse of Append.
func DecodeFileRead(p []byte) (FileRead, error) {
	d := decoder{b: p}
	m := FileRead{View: d.view(), Path: d.string(), Offset: d.int(), Length: d.int()}
	return m, d.err()
}

// WriteMode says how an existing file is treated.
type WriteMode uint64

// Write modes.
const (
	WriteReplace WriteMode = iota // at the end the new file takes its place, at once
	WriteCreate                   // it must not exist
	WriteAt                       // it is changed from Offset on
	WriteAppend                   // it is continued
)

// FileWrite is the request of a channel of KindWrite, whose input is written. Done carries
// FileInfo.
type FileWrite struct {
	View    View
	Path    string
	Mode    WriteMode
	Offset  int64  // of WriteAt
	Perm    uint64 // of a new file; 0: 0644, or as the replaced one
	Parents bool   // make missing directories
}

// Append appends the message to b.
func (m FileWrite) Append(b []byte) []byte {
	b = putString(m.View.append(b), m.Path)
	b = putInt(putUint(b, uint64(m.Mode)), m.Offset)
	return putBool(putUint(b, m.Perm), m.Parents)
}

// DecodeFileWrite is the reverse of Append.
func DecodeFileWrite(p []byte) (FileWrite, error) {
	d := decoder{b: p}
	m := FileWrite{View: d.view(), Path: d.string(), Mode: WriteMode(d.uint()), Offset: d.int(), Perm: d.uint(), Parents: d.bool()}
	if m.Mode > WriteAppend {
		d.fail()
	}
	return m, d.err()
}

// Op is an operation of a channel of KindFile.
type Op uint64

// Operations. Numbers are never reused.
const (
	OpStat    Op = 1 // the file itself, also if it is a symbolic link; Done carries FileInfos
	OpList    Op = 2 // a directory, by name, from After on, with Recursive attributes too; Done carries FileInfos
	OpMove    Op = 3 // to To; Recursive: To may be replaced
	OpCopy    Op = 4 // to To, which does not exist; with Recursive directories too
	OpRemove  Op = 5 // with Recursive a directory with its contents
	OpMkdir   Op = 6 // with Recursive its parents too, and it may exist
	OpChmod   Op = 7 // Perm
	OpAttrs   Op = 8 // extended attributes of users; Done carries Strings: name, value, ...
	OpSetAttr Op = 9 // To: its name; Value, or without one and without Recursive its removal

	OpSymlink  Op = 10 // a symbolic link, whose target is To
	OpLink     Op = 11 // To, which does not exist, becomes another name of it
	OpTimes    Op = 12 // Accessed and Modified
	OpTruncate Op = 13 // Size
	OpSpace    Op = 14 // the file system; Done carries FileSpace
)

// FileOp is the request of a channel of KindFile.
type FileOp struct {
	View      View
	Op        Op
	Path      string
	To        string
	Perm      uint64
	Recursive bool
	Value     []byte
	After     string
	Limit     uint64
	Size      int64
	Accessed  int64 // unix nanoseconds
	Modified  int64
}

// Append appends the message to b.
func (m FileOp) Append(b []byte) []byte {
	b = putUint(m.View.append(b), uint64(m.Op))
	b = putString(putString(b, m.Path), m.To)
	b = putBool(putUint(b, m.Perm), m.Recursive)
	b = putString(putBytes(b, m.Value), m.After)
	b = putInt(putUint(b, m.Limit), m.Size)
	return putInt(putInt(b, m.Accessed), m.Modified)
}

// DecodeFileOp is the reverse of Append.
func DecodeFileOp(p []byte) (FileOp, error) {
	d := decoder{b: p}
	m := FileOp{View: d.view(), Op: Op(d.uint()), Path: d.string(), To: d.string(), Perm: d.uint(), Recursive: d.bool()}
	m.Value, m.After, m.Limit = d.bytes(), d.string(), d.uint()
	m.Size, m.Accessed, m.Modified = d.int(), d.int(), d.int()
	return m, d.err()
}

// FileInfo describes a file.
type FileInfo struct {
	Name    string
	Mode    uint64 // st_mode
	Size    int64
	ModTime int64 // unix nanoseconds
	UID     uint64
	GID     uint64
	Target  string   // of a symbolic link
	Attrs   []string // where asked for, extended attributes of users: name, value, ...
}

// Append appends the message to b. It is followed by other fields only in a message of its own: see FileInfos.
func (m FileInfo) Append(b []byte) []byte {
	b = putUint(putString(b, m.Name), m.Mode)
	b = putInt(putInt(b, m.Size), m.ModTime)
	b = putUint(putUint(b, m.UID), m.GID)
	return putStrings(putString(b, m.Target), m.Attrs)
}

// DecodeFileInfo is the reverse of Append.
func DecodeFileInfo(p []byte) (FileInfo, error) {
	d := decoder{b: p}
	m := FileInfo{Name: d.string(), Mode: d.uint(), Size: d.int(), ModTime: d.int(), UID: d.uint(), GID: d.uint(), Target: d.string(), Attrs: d.strings()}
	return m, d.err()
}

// Bounds of FileInfos: entries, and bytes.
const (
	MaxInfos     = 1024
	maxInfoBytes = 96 << 10
)

// FileInfos is a list of files.
type FileInfos struct {
	Files []FileInfo
	More  bool // more entries follow the last one
}

// Append appends the message to b: as many files as a frame holds.
func (m FileInfos) Append(b []byte) []byte {
	var list []byte
	n := 0
	for ; n < min(len(m.Files), MaxInfos); n++ {
		f := m.Files[n].Append(nil)
		if len(list)+len(f) > maxInfoBytes {
			break
		}
		list = putBytes(list, f)
	}
	return append(putBool(b, m.More || n < len(m.Files)), list...)
}

// DecodeFileInfos is the reverse of Append.
func DecodeFileInfos(p []byte) (FileInfos, error) {
	d := decoder{b: p}
	m := FileInfos{More: d.bool()}
	for len(d.b) > 0 {
		f, err := DecodeFileInfo(d.bytes())
		if err != nil || len(m.Files) >= MaxInfos {
			d.fail()
		}
		m.Files = append(m.Files, f)
	}
	if d.bad {
		return FileInfos{}, ErrMalformed
	}
	return m, nil
}

// FileSpace is the room of a file system. Bytes that only the system may use are
// not free.
type FileSpace struct {
	Bytes, FreeBytes uint64
	Files, FreeFiles uint64
}

// Append appends the message to b.
func (m FileSpace) Append(b []byte) []byte {
	return putUint(putUint(putUint(putUint(b, m.Bytes), m.FreeBytes), m.Files), m.FreeFiles)
}

// DecodeFileSpace is the reverse of Append.
func DecodeFileSpace(p []byte) (FileSpace, error) {
	d := decoder{b: p}
	m := FileSpace{Bytes: d.uint(), FreeBytes: d.uint(), Files: d.uint(), FreeFiles: d.uint()}
	return m, d.err()
}

// Strings is a list of strings.
type Strings []string

// Append appends the message to b.
func (m Strings) Append(b []byte) []byte { return putStrings(b, m) }

// DecodeStrings is the reverse of Append.
func DecodeStrings(p []byte) (Strings, error) {
	d := decoder{b: p}
	m := Strings(d.strings())
	return m, d.err()
}

// FileChange is the kind of a change.
type FileChange uint64

// Changes of files.
const (
	FileCreated    FileChange = 1 // made, or moved here
	FileWritten    FileChange = 2
	FileRemoved    FileChange = 3 // removed, or moved away
	FileAttributes FileChange = 4
	FilesMissed    FileChange = 5 // there were more changes than could be kept
)

// FileEvent is a change below a watched directory. The first output of a
// channel of KindWatch is a sequence of them, each with its length before it.
type FileEvent struct {
	Op   FileChange
	Path string // from the watched directory
	Dir  bool
}

// maxFileEvent bounds an event, in bytes: a path and its fields.
const maxFileEvent = 8 << 10

// AppendTo appends the event with its length to b.
func (m FileEvent) AppendTo(b []byte) []byte {
	return putBytes(b, putBool(putString(putUint(nil, uint64(m.Op)), m.Path), m.Dir))
}

// ReadFileEvent reads an event with its length.
func ReadFileEvent(r *bufio.Reader) (FileEvent, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return FileEvent{}, err
	}
	if n > maxFileEvent {
		return FileEvent{}, ErrMalformed
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return FileEvent{}, err
	}
	d := decoder{b: b}
	m := FileEvent{Op: FileChange(d.uint()), Path: d.string(), Dir: d.bool()}
	return m, d.err()
}
