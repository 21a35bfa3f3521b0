package attach

import "time"

// A user leaves a detached process on a terminal by pressing Ctrl-] three times
// within a second, as in systemd-nspawn. No key is held back, so the process gets
// the first two.
const (
	detachKey     = ']' & 0x1f
	detachPresses = 3
	detachWithin  = time.Second
)

// detachKeys finds these presses in input.
type detachKeys struct {
	presses int       // of the key, without another key between them
	first   time.Time // time of the first of them
}

// find looks at input that was read at now. It returns how many bytes of it are
// for the process, and whether the user leaves.
func (k *detachKeys) find(in []byte, now time.Time) (int, bool) {
	for i, b := range in {
		if b != detachKey {
			k.presses = 0
			continue
		}
		if k.presses == 0 || now.Sub(k.first) > detachWithin {
			k.presses, k.first = 0, now
		}
		if k.presses++; k.presses == detachPresses {
			k.presses = 0
			return i, true
		}
	}
	return len(in), false
}
