// Package lsvd is a log-structured virtual disk: a block device whose writes
// are durable in a local log, whose data lives in immutable segments in an
// object store, and that survives every crash as an exact prefix of what was
// written. It clones and snapshots without copying. It stands alone: package
// nbd serves a [Device] to programs.
//
// # Path of a write
//
// One committer at a time takes the waiting operations, writes them as one
// record to the log, changes the map in the same order and acknowledges. An
// acknowledged write survives the process; Flush and FUA share an fdatasync
// and make it survive a power loss. Every logged extent has a sequence number.
//
// Changes collect in the active cut: an overlay map of log positions. A cut of
// 16 MiB or 5 s is frozen, built into a segment without what it overwrote
// itself, and created in the store under the next number of the chain; or into
// two, of which one has what is likely to be overwritten soon. Then the base map takes over its addresses, and the log files are recycled. So the
// store's state moves by whole cuts, and the base map is always the disk as
// it was after some sequence number. A read asks the active cut, the frozen
// ones from new to old, then the base map; what nobody maps reads as zeros.
//
// The leaves of the base map are stored in checkpoints, and only those in use
// are in memory; what segments since the last checkpoint have lies over them.
// So Open reads a directory of the map, not the map, and an idle disk keeps
// little in memory. The manifest counts the live blocks of segments.
//
// # Manifest, epochs, fences
//
// The manifest is replaced by compare-and-swap: from time to time, with a
// checkpoint of the base map, not for every cut. Segments after it are found
// by probing the chain: numbers without gaps under the epoch of the writer.
// To open a volume is to claim the next epoch in the manifest, to adopt the
// chain and to put a fence where its next segment would be. An earlier owner
// that is still alive runs into the fence with its next cut and fails for
// good: one chain never has two writers. One that has nothing to send reads the
// manifest now and then, so that it does not serve for ever what once was.
//
// Recovery is manifest, chain, local log. The log belongs to the epoch that
// wrote it and says which one it continues, so the log of an owner that
// somebody else has succeeded is never replayed. If the log that should be
// there is not, or a segment is missing or damaged, Open refuses; with
// AcceptLoss it gives the exact prefix that is left and says so. What the log
// had promised to be durable is not read to open a disk, but when somebody
// reads it or it is sent; if it is damaged then, the disk fails, and is refused
// from then on like one whose log was found damaged at once.
//
// # Path of a read
//
// What is not in the log is looked for in memory (frames of 64 KiB, kept by
// S3-FIFO, within CacheBytes with all indexes), in the disk cache, which disks
// of a process share, and in the store. From a remote store a random read fetches
// 256 KiB, or less where that does not pay; several streams at once are read
// ahead of; who waits for the same frame waits for one fetch. What was read
// first the last time is brought in when the disk, or a clone, is opened; the
// index of a segment is fetched beside the first frame. From a store that
// is local, and from the disk cache, single blocks are read, and checked by
// their sums. Everything is checked where it comes in: what does not hold is
// fetched again, and never served.
//
// # Garbage
//
// What overwrites something that was young is expected to be overwritten soon
// as well, as a journal is. It has segments of its own, which die whole.
//
// GC picks segments by cost and benefit, moves what is live to segments of its
// own stream, keeping original sequence numbers, and relocates exactly those
// blocks that still are where they were. It leaves alone what a snapshot names,
// and what other volumes name too unless copies for all of them would be
// smaller. Objects are deleted after a manifest without them is durable,
// readers are past, and no other manifest in the store names them; snapshots
// and clones are nothing but manifests.
//
// # Lock order
//
// align, then the committer's queue (held by no one while waiting); pub, then
// mu, then the log's locks. pub is held over store operations, mu never is.
// CompactTogether takes pub of several disks, in the order of their volumes.
package lsvd

import (
	"crypto/rand"
	"io"
	"log/slog"
	"time"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/pkg/errs"
)

// BlockSize is the unit of the map. Reads and writes may have any alignment;
// those aligned to it are faster, and only they are written in parallel.
const BlockSize = 4096

// MaxSize is the largest size of a disk: 16 TiB.
const MaxSize = extent.MaxBlocks * BlockSize

// ID identifies a volume for ever.
type ID = name.Volume

// NewID makes a random ID.
func NewID() ID { return name.NewVolume() }

// ParseID reads the string form of an ID.
func ParseID(s string) (ID, error) { return name.ParseVolume(s) }

// Options configure an open disk. The zero value is usable.
type Options struct {
	Logger *slog.Logger // default: discard

	// Key encrypts segments if the volume was created with one: 32 bytes.
	// The local log, the map and manifests are not encrypted.
	Key []byte

	LogFile    int64         // size of a log file; default 32 MiB, at least 64 KiB
	CutBytes   int64         // a cut is frozen at this size; default 16 MiB
	CutAge     time.Duration // or at this age; default 5 s
	MaxUnsent  int64         // bound of logged bytes not yet in the store; default 1 GiB
	CacheBytes int64         // bound of the read cache in memory, with its indexes; default 64 MiB
	MapBytes   int64         // bound of what the map keeps in memory though it is stored; default 32 MiB
	Checkpoint int           // segments between checkpoints; default 16
	GCRatio    float64       // start GC above this ratio of stored to live blocks; default 1.43

	// DiskCache, if set, keeps what was written and read on a local disk. It
	// may be shared, and is closed by who opened it, after the disks.
	DiskCache *DiskCache

	// LogSpace, if set, bounds the local log together with those of other disks.
	// Writes wait while it is used up.
	LogSpace *LogSpace

	// ReadTimeout is how long a read waits for a store that does not answer
	// before it fails; default 10 minutes: file systems and databases take a
	// delay better than an error.
	ReadTimeout time.Duration
	// OwnerCheck is how long the disk goes on without having heard from the
	// store that nobody else has opened the volume; then it asks. It costs an
	// idle disk one small request each time; default 30 s, and up to a quarter
	// more.
	OwnerCheck time.Duration
	// Compression of segments; those that are there stay as they are.
	Compression Compression

	// RemoteFlush makes Flush and FUA wait until the store has the data too.
	RemoteFlush bool
	// AcceptLoss opens a volume although data is known to be lost.
	AcceptLoss bool

	Now    func() time.Time // default time.Now
	Random io.Reader        // default crypto/rand; used concurrently

	manual bool // tests: no goroutines, the caller steps
}

func (o Options) withDefaults() (Options, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = rand.Reader
	}
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.LogFile, 32<<20)
	def(&o.CutBytes, 16<<20)
	def(&o.MaxUnsent, 1<<30)
	def(&o.CacheBytes, 64<<20)
	def(&o.MapBytes, 32<<20)
	if o.CutAge == 0 {
		o.CutAge = 5 * time.Second
	}
	if o.ReadTimeout == 0 {
		o.ReadTimeout = 10 * time.Minute
	}
	if o.OwnerCheck == 0 {
		o.OwnerCheck = 30 * time.Second
	}
	if o.Checkpoint == 0 {
		o.Checkpoint = 16
	}
	if o.GCRatio == 0 {
		o.GCRatio = 1.43
	}
	switch {
	case o.Key != nil && len(o.Key) != 32:
		return o, errs.New(errs.InvalidArgument, "key has %d bytes, not 32", len(o.Key))
	case o.LogFile < 64<<10 || o.LogFile%BlockSize != 0:
		return o, errs.New(errs.InvalidArgument, "log file size %d is not a multiple of 4096 from 64 KiB", o.LogFile)
	case o.CutBytes < BlockSize || o.MaxUnsent < o.CutBytes || o.CacheBytes < 0 || o.MapBytes < 0 || o.CutAge < 0 || o.ReadTimeout < 0 || o.OwnerCheck < 0 || o.Checkpoint < 1 || o.GCRatio < 1:
		return o, errs.New(errs.InvalidArgument, "options are out of range: cut %d, unsent %d, cache %d, age %v, patience %v, owner check %v, checkpoint %d, ratio %v",
			o.CutBytes, o.MaxUnsent, o.CacheBytes, o.CutAge, o.ReadTimeout, o.OwnerCheck, o.Checkpoint, o.GCRatio)
	}
	return o, nil
}

// Compression says which segments are compressed.
type Compression uint8

// The kinds of compression.
const (
	// CompressRemote compresses unless the store is local, a directory: from
	// there single blocks of what is stored plain are read without detour,
	// where unpacking 64 KiB for each costs most of a core.
	CompressRemote Compression = iota
	CompressAll
	CompressNone
)

// Flags of a write.
type Flags uint8

// FUA makes the write survive a power loss before it is acknowledged.
const FUA Flags = 1
