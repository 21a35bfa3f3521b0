package agentproto

import "fmt"

// magic opens a Hello, so that the node notices another program on the socket.
const magic = 0x72746167

// Hello is the first frame of a connection, from the agent.
type Hello struct {
	MinVersion, MaxVersion uint64
	Token                  string
	// Boot is a different number for each start of an agent: execs of one boot
	// are unknown to the next.
	Boot uint64
	Main Main
}

// Append appends the message to b.
func (m Hello) Append(b []byte) []byte {
	b = putUint(b, magic)
	b = putUint(b, m.MinVersion)
	b = putUint(b, m.MaxVersion)
	b = putString(b, m.Token)
	b = putUint(b, m.Boot)
	return m.Main.Append(b)
}

// DecodeHello is the reverse of Append.
func DecodeHello(p []byte) (Hello, error) {
	d := decoder{b: p}
	if d.uint() != magic {
		return Hello{}, ErrMalformed
	}
	m := Hello{MinVersion: d.uint(), MaxVersion: d.uint(), Token: d.string(), Boot: d.uint()}
	m.Main = d.main()
	return m, d.err()
}

// Welcome answers Hello. With Refused set the node closes the connection.
type Welcome struct {
	Version   uint64
	Time      int64 // unix nanoseconds of the host
	Heartbeat int64 // nanoseconds; 0: the default
	Refused   string
}

// Append appends the message to b.
func (m Welcome) Append(b []byte) []byte {
	b = putUint(b, m.Version)
	b = putInt(b, m.Time)
	b = putInt(b, m.Heartbeat)
	return putString(b, m.Refused)
}

// DecodeWelcome is the reverse of Append.
func DecodeWelcome(p []byte) (Welcome, error) {
	d := decoder{b: p}
	m := Welcome{Version: d.uint(), Time: d.int(), Heartbeat: d.int(), Refused: d.string()}
	return m, d.err()
}

// MainState is the state of the main process.
type MainState uint8

// States of the main process.
const (
	MainNone MainState = iota
	MainPending
	MainRunning
	MainExited
)

// Main is the agent's knowledge of the main process.
type Main struct {
	State     MainState
	PID       int64
	StartedAt int64 // unix nanoseconds of the guest
	Exit      Exit
}

// Append appends the message to b.
func (m Main) Append(b []byte) []byte {
	b = putUint(b, uint64(m.State))
	b = putInt(b, m.PID)
	b = putInt(b, m.StartedAt)
	return m.Exit.Append(b)
}

func (d *decoder) main() Main {
	s := d.uint()
	if s > uint64(MainExited) {
		d.fail()
	}
	return Main{State: MainState(s), PID: d.int(), StartedAt: d.int(), Exit: d.exit()}
}

// DecodeMain is the reverse of Append.
func DecodeMain(p []byte) (Main, error) {
	d := decoder{b: p}
	m := d.main()
	return m, d.err()
}

// Exit describes how a process ended.
type Exit struct {
	Code    int64 // 128+n for signal n; 126 and 127 with a message: not started
	Signal  int64
	At      int64  // unix nanoseconds of the guest
	Message string // the reason why it was not started
}

// Append appends the message to b.
func (m Exit) Append(b []byte) []byte {
	b = putInt(b, m.Code)
	b = putInt(b, m.Signal)
	b = putInt(b, m.At)
	return putString(b, m.Message)
}

func (d *decoder) exit() Exit {
	return Exit{Code: d.int(), Signal: d.int(), At: d.int(), Message: d.string()}
}

// Failure is the reason why a request was not carried out. The zero value is
// success.
type Failure struct {
	Kind     FailureKind
	Message  string
	ExitCode int64 // of a process that could not be started
}

// FailureKind is the kind of a failure.
type FailureKind uint8

// Kinds of failures.
const (
	OK          FailureKind = iota
	NotStarted              // the process could not be started: see ExitCode
	NotFound                // no such exec
	Wrong                   // not possible in this state
	Exhausted               // too many
	Unsupported             // request of a newer version
)

// Append appends the message to b.
func (m Failure) Append(b []byte) []byte {
	b = putUint(b, uint64(m.Kind))
	b = putString(b, m.Message)
	return putInt(b, m.ExitCode)
}

func (d *decoder) failure() Failure {
	k := d.uint()
	if k > 255 {
		d.fail()
	}
	return Failure{Kind: FailureKind(k), Message: d.string(), ExitCode: d.int()}
}

// DecodeFailure is the reverse of Append.
func DecodeFailure(p []byte) (Failure, error) {
	d := decoder{b: p}
	m := d.failure()
	return m, d.err()
}

// Refuse returns the answer to a frame of a type that this side does not
// accept.
func Refuse(t Type) Failure {
	return Failure{Kind: Unsupported, Message: fmt.Sprintf("messages of type %d are not known here", t)}
}

// Reply answers a request.
type Reply struct {
	Failure
	Listening []Listener // of TListening only
}

// Listener is a TCP socket that accepts connections.
type Listener struct {
	Port uint64
	Addr string // 4 or 16 bytes
}

// MaxListeners is how many listeners a reply has at most.
const MaxListeners = 1024

// Append appends the message to b.
func (m Reply) Append(b []byte) []byte {
	b = m.Failure.Append(b)
	b = putUint(b, uint64(len(m.Listening)))
	for _, l := range m.Listening {
		b = putUint(b, l.Port)
		b = putString(b, l.Addr)
	}
	return b
}

// DecodeReply is the reverse of Append.
func DecodeReply(p []byte) (Reply, error) {
	d := decoder{b: p}
	m := Reply{Failure: d.failure()}
	n := d.uint()
	if n > MaxListeners {
		d.fail()
		n = 0
	}
	for range n {
		l := Listener{Port: d.uint(), Addr: d.string()}
		if l.Port > 65535 || len(l.Addr) != 4 && len(l.Addr) != 16 {
			d.fail()
		}
		if d.bad {
			break
		}
		m.Listening = append(m.Listening, l)
	}
	return m, d.err()
}

// Exec starts a process.
type Exec struct {
	Command []string
	Env     []string // added to the variables of the configuration
	WorkDir string
	User    string
	TTY     bool
	Size    Size
	Linger  int64 // nanoseconds that the exec outlives its connection; 0: the default
}

// Append appends the message to b.
func (m Exec) Append(b []byte) []byte {
	b = putStrings(b, m.Command)
	b = putStrings(b, m.Env)
	b = putString(b, m.WorkDir)
	b = putString(b, m.User)
	b = putBool(b, m.TTY)
	b = m.Size.Append(b)
	return putInt(b, m.Linger)
}

// DecodeExec is the reverse of Append.
func DecodeExec(p []byte) (Exec, error) {
	d := decoder{b: p}
	m := Exec{Command: d.strings(), Env: d.strings(), WorkDir: d.string(), User: d.string(), TTY: d.bool()}
	m.Size = d.size()
	m.Linger = d.int()
	return m, d.err()
}

// Size is the size of a terminal, in characters.
type Size struct{ Rows, Cols uint16 }

// Append appends the message to b.
func (m Size) Append(b []byte) []byte {
	return putUint(putUint(b, uint64(m.Rows)), uint64(m.Cols))
}

func (d *decoder) size() Size {
	rows, cols := d.uint(), d.uint()
	if rows > 65535 || cols > 65535 {
		d.fail()
	}
	return Size{Rows: uint16(rows), Cols: uint16(cols)}
}

// DecodeSize is the reverse of Append.
func DecodeSize(p []byte) (Size, error) {
	d := decoder{b: p}
	m := d.size()
	return m, d.err()
}

// Attach continues an exec on this connection. The agent may forget output
// below Ack. It sends output again from From, or from the first byte that it
// still has.
type Attach struct {
	Out, Err Position
}

// Position is a reader's position in a stream.
type Position struct{ Ack, From int64 }

// Append appends the message to b.
func (m Attach) Append(b []byte) []byte {
	for _, v := range []int64{m.Out.Ack, m.Out.From, m.Err.Ack, m.Err.From} {
		b = putUint(b, uint64(v))
	}
	return b
}

// DecodeAttach is the reverse of Append.
func DecodeAttach(p []byte) (Attach, error) {
	d := decoder{b: p}
	var m Attach
	for _, v := range []*int64{&m.Out.Ack, &m.Out.From, &m.Err.Ack, &m.Err.From} {
		*v = d.offset()
	}
	return m, d.err()
}

// Started answers Exec and Attach.
type Started struct {
	Failure
	PID     int64
	TTY     bool
	Out     int64 // offset of the output that follows
	Err     int64
	In      int64 // bytes of stdin that have arrived
	InGrant int64 // offset up to which stdin may be sent; at most InWindow beyond the bytes that the process has read
}

// Append appends the message to b.
func (m Started) Append(b []byte) []byte {
	b = m.Failure.Append(b)
	b = putInt(b, m.PID)
	b = putBool(b, m.TTY)
	for _, v := range []int64{m.Out, m.Err, m.In, m.InGrant} {
		b = putUint(b, uint64(v))
	}
	return b
}

// DecodeStarted is the reverse of Append.
func DecodeStarted(p []byte) (Started, error) {
	d := decoder{b: p}
	m := Started{Failure: d.failure(), PID: d.int(), TTY: d.bool()}
	for _, v := range []*int64{&m.Out, &m.Err, &m.In, &m.InGrant} {
		*v = d.offset()
	}
	return m, d.err()
}

// Exited describes how an exec ended and how much output it made.
type Exited struct {
	Exit
	Out, Err int64
}

// Append appends the message to b.
func (m Exited) Append(b []byte) []byte {
	b = m.Exit.Append(b)
	return putUint(putUint(b, uint64(m.Out)), uint64(m.Err))
}

// DecodeExited is the reverse of Append.
func DecodeExited(p []byte) (Exited, error) {
	d := decoder{b: p}
	m := Exited{Exit: d.exit(), Out: d.offset(), Err: d.offset()}
	return m, d.err()
}

// Number is the payload of TPing and TPong (unix nanoseconds), TAck, TInEOF
// and TGrant (offsets), TSignal and TKill (signal numbers).
type Number int64

// Append appends the message to b.
func (m Number) Append(b []byte) []byte { return putUint(b, uint64(m)) }

// DecodeNumber is the reverse of Append.
func DecodeNumber(p []byte) (int64, error) {
	d := decoder{b: p}
	v := d.offset()
	return v, d.err()
}
