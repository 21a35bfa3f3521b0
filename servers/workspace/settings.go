package workspace

import (
	"math"
	"strconv"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/pkg/errs"
)

// Template is the name of the template of sessions. It comes with the system,
// and has the limits of the settings, so that its warm sandboxes fit.
const Template = "workspace-se"

// Settings are what the environment of the server states for this API.
type Settings struct {
	CPUMillis    int64         // SANDBOX_CPU_QUOTA, in CPUs
	MemoryBytes  int64         // SANDBOX_MEMORY_LIMIT, in KiB
	AllowNetwork bool          // SANDBOX_ALLOW_NETWORK
	Timeout      time.Duration // SANDBOX_TIMEOUT_SECONDS; of one command or program
	PoolSize     int64         // SANDBOX_POOL_SIZE; warm sandboxes of a project that uses the API
}

const (
	maxTimeout = 3600 // seconds
	kib        = 1 << 10
	mib        = 1 << 20
)

// Load reads the settings from the variables of the environment. InvalidArgument
// with the name of a variable that is wrong.
func Load(getenv func(string) string) (Settings, error) {
	s := Settings{AllowNetwork: true}
	cpus, err := number(getenv, "SANDBOX_CPU_QUOTA", "a number of CPUs", 2, 0.01, sandbox.MaxCPUMillis/1000)
	if err != nil {
		return s, err
	}
	memory, err := whole(getenv, "SANDBOX_MEMORY_LIMIT", "a number of KB", 131072, sandbox.MinMemoryBytes/kib, math.MaxInt32)
	if err != nil {
		return s, err
	}
	seconds, err := whole(getenv, "SANDBOX_TIMEOUT_SECONDS", "a number of seconds", 300, 1, maxTimeout)
	if err != nil {
		return s, err
	}
	if s.PoolSize, err = whole(getenv, "SANDBOX_POOL_SIZE", "a number of sandboxes", 2, 0, sandbox.MaxWarm); err != nil {
		return s, err
	}
	if text := getenv("SANDBOX_ALLOW_NETWORK"); text != "" {
		if s.AllowNetwork, err = strconv.ParseBool(text); err != nil {
			return s, errs.New(errs.InvalidArgument, "environment: SANDBOX_ALLOW_NETWORK is %q, not true or false", text)
		}
	}
	s.CPUMillis, s.MemoryBytes, s.Timeout = int64(math.Round(cpus*1000)), memory*kib, time.Duration(seconds)*time.Second
	return s, nil
}

func number(getenv func(string) string, name, what string, def, least, most float64) (float64, error) {
	text := getenv(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= least && n <= most) { // also NaN
		return 0, errs.New(errs.InvalidArgument, "environment: %s is %q, not %s from %v to %v", name, text, what, least, most)
	}
	return n, nil
}

func whole(getenv func(string) string, name, what string, def, least, most int64) (int64, error) {
	text := getenv(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, errs.New(errs.InvalidArgument, "environment: %s is %q, not %s from %d to %d", name, text, what, least, most)
	}
	return n, nil
}

// Shipped returns the template of sessions: the default one with their limits.
func (s Settings) Shipped() languages.Template {
	t := languages.Templates()[0]
	t.Name, t.Doc = Template, "Sessions of "+Prefix+": shell, Python and Node.js"
	t.CPUMillis, t.MemoryMiB = s.CPUMillis, (s.MemoryBytes+mib-1)/mib
	return t
}
