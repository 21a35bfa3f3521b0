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
	return putInt(b, m.LogBytes)
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
	m.PIDs, m.LogBytes = d.int(), d.int()
	return m, d.err()
}
