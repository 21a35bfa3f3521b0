package netdump

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestInterruptedDumpIsRepeated(t *testing.T) {
	calls := 0
	interrupted := func(n int, last error) func() ([]int, error) {
		calls = 0
		return func() ([]int, error) {
			if calls++; calls <= n {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, last
		}
	}
	if got, err := List(interrupted(3, nil)); err != nil || len(got) != 2 || calls != 4 {
		t.Errorf("%v, %v after %d calls", got, err, calls)
	}
	other := errors.New("other")
	if _, err := List(interrupted(0, other)); err != other || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if _, err := List(interrupted(1000, nil)); !errors.Is(err, netlink.ErrDumpInterrupted) || calls != attempts {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestKernelTablesAreRead(t *testing.T) {
	links, err := Links()
	if err != nil || len(links) == 0 {
		t.Fatalf("%d links, %v", len(links), err)
	}
	if _, err := Addresses(nil, netlink.FAMILY_V4); err != nil {
		t.Error(err)
	}
	if _, err := Routes(nil, netlink.FAMILY_V4); err != nil {
		t.Error(err)
	}
}
