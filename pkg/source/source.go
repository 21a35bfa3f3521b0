// Package source brings a source folder from the client to the server: the
// client walks it (Walk) and makes a Manifest; the server says which contents it
// lacks (Store.Missing); the client packs those (WritePack), the server unpacks
// them (Store.ReadPack) and lays the folder out for a build (Store.Materialize).
//
// # Manifest
//
// A manifest lists files and symbolic links by path, sorted, with the SHA-256
// of their content. Of the mode only "executable" is kept and nothing of owners and times, so the same
// source gives the same manifest everywhere. Empty folders are not kept. Clients run on Linux, macOS and
// Windows; where files have no permission bits, scripts with "#!" and ELF programs are executable.
// Its encoding is JSON without spaces; its digest is the SHA-256 of that. What a
// manifest from a client may hold is checked by Validate: it is hostile until then.
//
// # Pack
//
//	"rtpack1\n", then one zstd stream of:
//	0x01, SHA-256 (32 bytes), size (8 bytes, big-endian), content    once per content
//	0x00, number of contents (8 bytes, big-endian)                   once, at the end
//
// # Store
//
//	<dir>/manifests/<sha256>        encoded manifests; their mtime is when they were last used
//	<dir>/blobs/<xx>/<sha256>       contents, mode 0644; their mtime is when they came
//	<dir>/tmp/                      what is being written
//
// Files appear by rename, complete. The layout of a folder shares inodes with the store (hard links):
// it may be read and removed, never written to. A manifest is there before the contents it names, so
// that collection (Store.Collect) finds what an upload under way refers to.
package source

// Limits bound a source.
type Limits struct {
	Files     int   // files and links
	Bytes     int64 // bytes of all contents together
	FileBytes int64 // bytes of one content
}

// DefaultLimits hold where a limit is 0.
var DefaultLimits = Limits{Files: 50_000, Bytes: 2 << 30, FileBytes: 512 << 20}

func (l Limits) orDefault() Limits {
	if l.Files == 0 {
		l.Files = DefaultLimits.Files
	}
	if l.Bytes == 0 {
		l.Bytes = DefaultLimits.Bytes
	}
	if l.FileBytes == 0 {
		l.FileBytes = DefaultLimits.FileBytes
	}
	return l
}
