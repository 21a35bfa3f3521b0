package agent

import (
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// capabilityNumbers are those that programs of a sandbox can have.
var capabilityNumbers = map[string]uint{
	"CAP_CHOWN":            unix.CAP_CHOWN,
	"CAP_DAC_OVERRIDE":     unix.CAP_DAC_OVERRIDE,
	"CAP_FOWNER":           unix.CAP_FOWNER,
	"CAP_FSETID":           unix.CAP_FSETID,
	"CAP_KILL":             unix.CAP_KILL,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
	"CAP_SETFCAP":          unix.CAP_SETFCAP,
	"CAP_SETGID":           unix.CAP_SETGID,
	"CAP_SETPCAP":          unix.CAP_SETPCAP,
	"CAP_SETUID":           unix.CAP_SETUID,
	"CAP_SYS_CHROOT":       unix.CAP_SYS_CHROOT,
}

// capabilitySet returns the set of some capabilities, bit n for number n.
// InvalidArgument for one that programs of a sandbox cannot have.
func capabilitySet(names []string) (set uint64, err error) {
	for _, name := range names {
		n, ok := capabilityNumbers[name]
		if !ok {
			return 0, errs.New(errs.InvalidArgument, "programs of a sandbox cannot have the capability %s", name)
		}
		set |= 1 << n
	}
	return set, nil
}
