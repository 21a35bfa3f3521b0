package agentproto

// Config is the file ConfigName. It has secrets (token, environment).
type Config struct {
	Token    string
	Command  []string
	Env      []string
	WorkDir  string
	User     string
	Start    StartMode
	PIDs     int64
	LogBytes int64
	// Claimable: the agent accepts Configure.
	Claimable bool
	Binary    string // file name of the agent's program on the host
	CPUs      int64  // that programs see, at most; 0: all
	// Capabilities is the set that programs of root have, bit n for number n; not sent if it is empty, which earlier
	// agents expect.
	Capabilities uint64
}

const configMagic = 0x72746366

// MaxConfig bounds the file.
const MaxConfig = 4 << 20

// Append appends the message to b.
func (m Config) Append(b []byte) []byte {
	b = putUint(b, configMagic)
	b = putString(b, m.Token)
	b = putStrings(b, m.Command)
	b = putStrings(b, m.Env)
	b = putString(b, m.WorkDir)
	b = putString(b, m.User)
	b = putUint(b, uint64(m.Start))
	b = putInt(b, m.PIDs)
	b = putInt(b, m.LogBytes)
	b = putBool(b, m.Claimable)
	b = putString(b, m.Binary)
	b = putInt(b, m.CPUs)
	if m.Capabilities != 0 {
		b = putUint(b, m.Capabilities)
	}
	return b
}

// DecodeConfig is the reverse of Append.
func DecodeConfig(p []byte) (Config, error) {
	d := decoder{b: p}
	if d.uint() != configMagic {
		return Config{}, ErrMalformed
	}
	m := Config{Token: d.string(), Command: d.strings(), Env: d.strings(), WorkDir: d.string(), User: d.string()}
	s := d.uint()
	if s > uint64(StartOnRequest) {
		d.fail()
	}
	m.Start = StartMode(s)
	m.PIDs, m.LogBytes, m.Claimable = d.int(), d.int(), d.bool()
	m.Binary, m.CPUs = d.string(), d.int()
	if len(d.b) > 0 {
		m.Capabilities = d.uint()
	}
	return m, d.err()
}

// Configure is the request that gives a sandbox to its user: TConfigure. The
// answer is a Reply. An agent accepts one claim, and answers its repetition as
// the first time.
type Configure struct {
	Claim    string
	Hostname string   // empty: unchanged
	Env      []string // added to the variables of Config
	WorkDir  string   // empty: unchanged
	User     string   // empty: unchanged
	PIDs     int64    // 0: unchanged
	CPUs     int64    // that programs see, at most; 0: unchanged
	Mounts   bool     // a Mount follows; not sent if false, which earlier agents expect
}

// Append appends the message to b.
func (m Configure) Append(b []byte) []byte {
	b = putString(b, m.Claim)
	b = putString(b, m.Hostname)
	b = putStrings(b, m.Env)
	b = putString(b, m.WorkDir)
	b = putString(b, m.User)
	b = putInt(putInt(b, m.PIDs), m.CPUs)
	if m.Mounts {
		b = putBool(b, true)
	}
	return b
}

// DecodeConfigure is the reverse of Append.
func DecodeConfigure(p []byte) (Configure, error) {
	d := decoder{b: p}
	m := Configure{Claim: d.string(), Hostname: d.string(), Env: d.strings(), WorkDir: d.string(), User: d.string(), PIDs: d.int(), CPUs: d.int()}
	if len(d.b) > 0 {
		m.Mounts = d.bool()
	}
	return m, d.err()
}

// Mount is the request that shows the volumes of a claim: TMount. The answer is a
// Reply. A repetition is answered as the first time.
type Mount struct {
	Claim   string
	Targets []string // absolute paths; number n gets the directory n of GuestVolume
}

// Append appends the message to b.
func (m Mount) Append(b []byte) []byte {
	return putStrings(putString(b, m.Claim), m.Targets)
}

// DecodeMount is the reverse of Append.
func DecodeMount(p []byte) (Mount, error) {
	d := decoder{b: p}
	m := Mount{Claim: d.string(), Targets: d.strings()}
	return m, d.err()
}
