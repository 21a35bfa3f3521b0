package agentproto

// Dial is the request of a channel of KindDial: a TCP port of the sandbox, on
// any of its addresses. The input and the first output are the connection's.
type Dial struct{ Port uint64 }

// Append appends the message to b.
func (m Dial) Append(b []byte) []byte { return putUint(b, m.Port) }

// DecodeDial is the reverse of Append.
func DecodeDial(p []byte) (Dial, error) {
	d := decoder{b: p}
	m := Dial{Port: d.uint()}
	if m.Port == 0 || m.Port > 65535 {
		d.fail()
	}
	return m, d.err()
}

// Activity says how much the sandbox is used.
type Activity struct {
	Idle      int64  // nanoseconds since the node opened, used or ended a channel for a user
	Processes uint64 // channels of KindProcess whose process runs
	Others    uint64 // other channels that users have open
}

// Append appends the message to b.
func (m Activity) Append(b []byte) []byte {
	return putUint(putUint(putInt(b, m.Idle), m.Processes), m.Others)
}

// DecodeActivity is the reverse of Append.
func DecodeActivity(p []byte) (Activity, error) {
	d := decoder{b: p}
	m := Activity{Idle: d.int(), Processes: d.uint(), Others: d.uint()}
	return m, d.err()
}
