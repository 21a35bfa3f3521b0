// Package lsvd is a log-structured virtual disk: a block device whose writes
// are durable in a local log, whose data lives in immutable segments in an
// object store, and that survives every crash as an exact prefix of what was
// written. Clones and snapshots copy no data. The package stands alone:
// frontend/nbd serves a [Device] to programs, frontend/loop makes a block
// device of it, inspect looks at volumes without opening them.
//
// # Glossary
//
//	volume      what a store keeps of a disk, for ever; its ID names it
//	disk        a volume that is open: a [Device]
//	block       4096 bytes, the unit of the map; LBA is the number of a block
//	extent      blocks in a row, in a record of the log or in a map
//	log         local files with the writes that the store may lack (internal/wal)
//	record      what one append writes to the log; it is valid whole or not at all
//	sequence    number of a logged extent; a later write has a higher one
//	promised    up to this sequence number a record says that the log was durable
//	committer   the goroutine that writes the next record; writers take turns
//	cut         all extents between two sequence numbers on their way to the
//	            store, kept in memory as an overlay of the map (a memtable)
//	segment     an immutable object with the blocks of a cut, or of GC
//	frame       64 KiB of a segment, compressed, encrypted and checked as one
//	index       the end of a segment: where its frames lie, and what it defines
//	base map    from blocks of the disk to blocks of segments, after some sequence
//	leaf, page  the base map of 512 blocks in memory; the same in a checkpoint
//	checkpoint  an object with the pages of the base map that have changed
//	manifest    the object that names the segments and checkpoints of a volume
//	chain       the segments after the manifest, by number without gaps
//	epoch       counts the openings of a volume; one owner each
//	fence       an object that ends the chain of an earlier epoch
//	takeover    an opening without the local log, which some other machine may have
//	stranded    of a log: with writes that a takeover has left out of the volume
//	reader epoch  readers that may use what was current before a change
//	local, remote store  one that offers [store.Local]; every other
//	demand, fill, prefetch  why a frame is in memory: a read needs it; a read
//	            needs some of it; no read has needed it yet
//	boot list   the blocks that are read first when a disk is opened
//	live        a block of a segment that the map names; the others are garbage
//
// # Path of a write
//
// One committer at a time takes the waiting operations, writes them as one
// record to the log, changes the map in the same order and acknowledges. An
// acknowledged write survives the process; Flush and FUA share an fdatasync
// and make it survive a power loss. Every logged extent has a sequence number.
//
// Changes collect in the active cut: an overlay map of log positions. A cut of
// 16 MiB or 5 s is frozen and built into a segment, without the blocks that it
// overwrote itself. Segments are created in the store under the next numbers of the
// chain. Then the base map takes over the cut's addresses, and the log files are
// recycled. So the store's state moves by whole
// cuts, and the base map is always the disk as it was after some sequence number.
// A read asks the active cut, the frozen ones from new to old, then the base map.
// Blocks that no map has read as zeros.
//
// The leaves of the base map are stored in checkpoints, and only those in use
// are in memory. A second map lies over it, with what the segments since the last
// checkpoint define. So Open reads a directory of the map, not the map, and an
// idle disk keeps little in memory. The manifest counts the live blocks of
// segments.
//
// # Manifest, epochs, fences
//
// The manifest is replaced by compare-and-swap: from time to time, with a
// checkpoint of the base map, not for every cut. Segments after it are found
// by probing the chain: numbers without gaps under the epoch of the writer.
// To open a volume is to claim the next epoch in the manifest, to adopt the
// chain and, unless the volume was closed clean, to put a fence where its next
// segment would be. An earlier owner that is still alive runs into the fence with
// its next cut and fails for good: one chain never has two writers. An owner that
// has nothing to send reads
// the manifest now and then, so that it does not serve stale data for ever.
//
// Recovery is manifest, chain, local log. The log belongs to the epoch that
// wrote it and says which one it continues, so a log is never replayed after
// a later owner has opened the volume. If the log is missing where it must be,
// or a segment is missing or damaged, Open refuses. With WithoutLog it does without the
// log; with AcceptLoss it gives the
// longest exact prefix and reports the loss. If the log is missing, Open keeps that
// state as a snapshot: where the log turns up, it is refused, and [Salvage] applies it to
// a clone. Open does not read all that the log promised to be durable: reads and
// uploads verify it. If it is damaged then, the disk fails, and Open refuses it from
// then on.
//
// # Path of a read
//
// A read looks in the log, in memory (frames of 64 KiB, kept by S3-FIFO within
// CacheBytes with all indexes), in the disk cache, which the disks of a process
// share, and in the store. From a remote store a random read fetches 256 KiB, or
// less where that does not pay. Several sequential streams at once are read
// ahead of. All readers of a frame share one fetch. The blocks that were read
// first the last time are prefetched when the disk, or a clone, is opened. The
// index of a segment and the first frame of it are fetched at the same time.
// From a local store, and from the disk cache, single blocks are read, and
// verified by their sums. Everything is verified where it comes in: a damaged
// frame is fetched again, and never served.
//
// # Garbage
//
// GC picks segments by cost and benefit, copies their live blocks to segments of
// its own stream, keeping original sequence numbers, and relocates exactly those
// blocks that still are where they were. It leaves alone the segments of
// snapshots, and those that other volumes name too: what clones share stays as it
// was when they were made, until a single volume names it.
// Objects are deleted after a manifest without them is durable, readers have left
// their epoch, and no other manifest in the store names them. Snapshots and clones
// are nothing but manifests. A clone is marked beside the volumes whose objects it
// names, so that its manifest is found without a listing of all volumes.
//
// # Lock order
//
// align, then the committer's queue (held by no operation while it waits);
// collecting (one garbage collection at a time), then pub, then mu, then the log's
// locks. collecting and pub are held over store operations, mu never is.
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

	// Key is the user's key of an encrypted volume: 32 bytes. Segments are
	// encrypted, maps and manifests authenticated; the local log is plain.
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
	// may be shared. The caller that opened it closes it, after the disks.
	DiskCache *DiskCache

	// LogSpace, if set, bounds the local log together with those of other disks.
	// Writes wait while it is used up.
	LogSpace *LogSpace

	// Memory, if set, bounds CacheBytes and MapBytes together with those of other disks.
	Memory *Memory

	// ReadTimeout is how long a read waits for a store that does not answer
	// before it fails; default 10 minutes: file systems and databases take a
	// delay better than an error.
	ReadTimeout time.Duration
	// OwnerCheck is how long the disk relies on the store's last confirmation
	// that the volume is its own; then it asks again. It costs an idle disk one
	// small request each time; default 30 s, and up to a quarter more.
	OwnerCheck time.Duration
	// Compression of segments; those that are there stay as they are.
	Compression Compression

	// RemoteFlush makes Flush and FUA wait until the store has the data too.
	RemoteFlush bool
	// WithoutLog opens a volume whose local log is not here, and accepts the loss of what
	// only the log has. Damage of what the store has is refused all the same.
	WithoutLog bool
	// AcceptLoss opens a volume although data is known to be lost, by damage or without
	// the log.
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
	if err := checkKey(o.Key); err != nil {
		return o, err
	}
	switch {
	case o.LogFile < 64<<10 || o.LogFile%BlockSize != 0:
		return o, errs.New(errs.InvalidArgument, "log file size %d is not a multiple of 4096 from 64 KiB", o.LogFile)
	case o.CutBytes < BlockSize || o.MaxUnsent < o.CutBytes || o.CacheBytes < 0 || o.MapBytes < 0 || o.CutAge < 0 || o.ReadTimeout < 0 || o.OwnerCheck < 0 || o.Checkpoint < 1 || o.GCRatio < 1:
		return o, errs.New(errs.InvalidArgument, "options are out of range: cut %d, unsent %d, cache %d, age %v, read timeout %v, owner check %v, checkpoint %d, ratio %v",
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
