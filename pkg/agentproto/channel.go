package agentproto

// Kind is the kind of a channel.
type Kind uint64

// Kinds of channels. Numbers are never reused.
const (
	KindProcess   Kind = 1  // Process; Opened carries ProcessInfo, Done an Exit
	KindProcesses Kind = 2  // lists the processes; Done carries Processes
	KindDial      Kind = 3  // Dial
	KindActivity  Kind = 4  // Done carries Activity
	KindRead      Kind = 5  // FileRead
	KindWrite     Kind = 6  // FileWrite
	KindFile      Kind = 7  // FileOp
	KindArchive   Kind = 8  // FileOp: Path, as tar in the first output
	KindExtract   Kind = 9  // FileOp: the input, a tar, into the directory Path; with Recursive it is made
	KindWatch     Kind = 10 // FileOp: changes in the directory Path, with Recursive also below; see FileEvent
	KindWarm      Kind = 11 // does once what a claim and its first process do, and leaves no trace; Done carries an Exit
)

// Streams of a channel. Input goes to the agent, the others come from it.
const (
	Stdin  uint8 = 0
	Stdout uint8 = 1
	Stderr uint8 = 2
)

// Control messages of KindProcess, in the stream field of TControl.
const (
	ControlResize uint8 = 1 // Size
	ControlSignal uint8 = 2 // Number, for the process group
)

// Lifetime says what ends a channel besides its work and TClose.
type Lifetime uint64

// Lifetimes.
const (
	LifeOnce     Lifetime = iota // the end of its connection; the agent forgets it when it has sent Done
	LifeLinger                   // some time without a connection
	LifeDetached                 // nothing; old output makes room for new, and the end is kept for a while
)

// Open opens a channel.
type Open struct {
	Kind     Kind
	Lifetime Lifetime
	Linger   int64 // nanoseconds without a connection, of LifeLinger; 0: the default
	Params   []byte
}

// Append appends the message to b.
func (m Open) Append(b []byte) []byte {
	b = putUint(b, uint64(m.Kind))
	b = putUint(b, uint64(m.Lifetime))
	b = putInt(b, m.Linger)
	return putBytes(b, m.Params)
}

// DecodeOpen is the reverse of Append. Params is part of p.
func DecodeOpen(p []byte) (Open, error) {
	d := decoder{b: p}
	m := Open{Kind: Kind(d.uint()), Lifetime: Lifetime(d.uint()), Linger: d.int(), Params: d.bytes()}
	if m.Lifetime > LifeDetached {
		d.fail()
	}
	return m, d.err()
}

// Resume continues a channel on this connection. The agent may forget output
// below Ack. It sends output again from From, or from the first byte that it
// still has.
type Resume struct {
	Out, Err Position
}

// Position is a reader's position in a stream.
type Position struct{ Ack, From int64 }

// Append appends the message to b.
func (m Resume) Append(b []byte) []byte {
	for _, v := range []int64{m.Out.Ack, m.Out.From, m.Err.Ack, m.Err.From} {
		b = putUint(b, uint64(v))
	}
	return b
}

// DecodeResume is the reverse of Append.
func DecodeResume(p []byte) (Resume, error) {
	d := decoder{b: p}
	var m Resume
	for _, v := range []*int64{&m.Out.Ack, &m.Out.From, &m.Err.Ack, &m.Err.From} {
		*v = d.offset()
	}
	return m, d.err()
}

// Opened says that a channel works, and where: after Open at once, or with the
// first of its output, and as the answer to Resume. A channel that could not be
// opened has Done instead.
type Opened struct {
	Waiting bool  // it was not carried out yet: another Opened, or Done, follows
	Out     int64 // offset of the output that follows
	Err     int64
	In      int64 // bytes of input that have arrived
	InAck   int64 // bytes of input that were used
	Info    []byte
}

// Append appends the message to b.
func (m Opened) Append(b []byte) []byte {
	b = putBool(b, m.Waiting)
	for _, v := range []int64{m.Out, m.Err, m.In, m.InAck} {
		b = putUint(b, uint64(v))
	}
	return putBytes(b, m.Info)
}

// DecodeOpened is the reverse of Append. Info is part of p.
func DecodeOpened(p []byte) (Opened, error) {
	d := decoder{b: p}
	m := Opened{Waiting: d.bool()}
	for _, v := range []*int64{&m.Out, &m.Err, &m.In, &m.InAck} {
		*v = d.offset()
	}
	m.Info = d.bytes()
	return m, d.err()
}

// Done is the end of a channel: its failure or result, and how much output it
// made, all of which was sent before.
type Done struct {
	Failure
	Out, Err int64
	Result   []byte
}

// Append appends the message to b.
func (m Done) Append(b []byte) []byte {
	b = m.Failure.Append(b)
	b = putUint(putUint(b, uint64(m.Out)), uint64(m.Err))
	return putBytes(b, m.Result)
}

// DecodeDone is the reverse of Append. Result is part of p.
func DecodeDone(p []byte) (Done, error) {
	d := decoder{b: p}
	m := Done{Failure: d.failure(), Out: d.offset(), Err: d.offset(), Result: d.bytes()}
	return m, d.err()
}
