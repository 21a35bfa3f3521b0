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

// DecodeExit is the reverse of Append.
func DecodeExit(p []byte) (Exit, error) {
	d := decoder{b: p}
	m := d.exit()
	return m, d.err()
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
	NotFound                // there is no such thing
	Wrong                   // not possible in this state
	Exhausted               // too many
	Unsupported             // request of a newer version
	Lost                    // the channel is not known (any more)
	Exists                  // there is such a thing already
	Denied                  // not permitted
	Invalid                 // not possible at all
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

// Number is the payload of TPing and TPong (unix nanoseconds), TAck and TEnd
// (offsets), TSignal and ControlSignal (signal numbers).
type Number int64

// Append appends the message to b.
func (m Number) Append(b []byte) []byte { return putUint(b, uint64(m)) }

// DecodeNumber is the reverse of Append.
func DecodeNumber(p []byte) (int64, error) {
	d := decoder{b: p}
	v := d.offset()
	return v, d.err()
}
