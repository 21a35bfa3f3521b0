package agentproto

// Process is the request of a channel of KindProcess.
type Process struct {
	Command []string
	Env     []string // added to the variables of the configuration
	WorkDir string
	User    string
	TTY     bool
	Size    Size
	NoInput bool   // it reads nothing: its input is /dev/null
	Tag     string // of the node, for the list
}

// MaxTag bounds Process.Tag, in bytes.
const MaxTag = 64

// Append appends the message to b.
func (m Process) Append(b []byte) []byte {
	b = putStrings(b, m.Command)
	b = putStrings(b, m.Env)
	b = putString(b, m.WorkDir)
	b = putString(b, m.User)
	b = putBool(b, m.TTY)
	b = m.Size.Append(b)
	b = putBool(b, m.NoInput)
	return putString(b, m.Tag)
}

// DecodeProcess is the reverse of Append.
func DecodeProcess(p []byte) (Process, error) {
	d := decoder{b: p}
	m := Process{Command: d.strings(), Env: d.strings(), WorkDir: d.string(), User: d.string(), TTY: d.bool()}
	m.Size = d.size()
	m.NoInput, m.Tag = d.bool(), d.string()
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

// ProcessInfo describes a process.
type ProcessInfo struct {
	ID        uint64 // of the channel
	PID       int64
	StartedAt int64 // unix nanoseconds of the guest
	TTY       bool
	Detached  bool
	Ended     bool
	Exit      Exit // if Ended
	Tag       string
	Command   []string // the beginning, at most MaxListed bytes
}

// MaxListed bounds the command of a listed process, in bytes.
const MaxListed = 512

// Append appends the message to b. It is not followed by other fields: see Processes.
func (m ProcessInfo) Append(b []byte) []byte {
	b = putUint(b, m.ID)
	b = putInt(b, m.PID)
	b = putInt(b, m.StartedAt)
	b = putBool(b, m.TTY)
	b = putBool(b, m.Detached)
	b = putBool(b, m.Ended)
	b = m.Exit.Append(b)
	b = putString(b, m.Tag)
	return putStrings(b, m.Command)
}

// DecodeProcessInfo is the reverse of Append.
func DecodeProcessInfo(p []byte) (ProcessInfo, error) {
	d := decoder{b: p}
	m := ProcessInfo{ID: d.uint(), PID: d.int(), StartedAt: d.int(), TTY: d.bool(), Detached: d.bool(), Ended: d.bool()}
	m.Exit, m.Tag, m.Command = d.exit(), d.string(), d.strings()
	return m, d.err()
}

// Processes are all processes that the node started.
type Processes []ProcessInfo

// maxProcesses fit in a frame of MaxFromAgent.
const maxProcesses = 128

// Append appends the message to b: at most maxProcesses, each with its length.
func (m Processes) Append(b []byte) []byte {
	for _, p := range m[:min(len(m), maxProcesses)] {
		b = putBytes(b, p.Append(nil))
	}
	return b
}

// DecodeProcesses is the reverse of Append.
func DecodeProcesses(p []byte) (Processes, error) {
	d := decoder{b: p}
	var m Processes
	for len(d.b) > 0 && len(m) < maxProcesses {
		info, err := DecodeProcessInfo(d.bytes())
		if err != nil {
			d.fail()
		}
		m = append(m, info)
	}
	if d.bad {
		return nil, ErrMalformed
	}
	return m, nil
}
