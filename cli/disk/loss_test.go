package disk

import (
	"testing"
	"time"

	"miren.dev/runtime/api/disk"
)

// TestLossIsSaid: `r disk show` says which bounds of a takeover's loss are known.
func TestLossIsSaid(t *testing.T) {
	none, least, most, at := int64(0), int64(48<<20), int64(3<<29), time.Date(2026, 11, 27, 8, 18, 2, 0, time.UTC)
	for _, tc := range []struct {
		s    disk.DiskStatus
		want string
	}{
		{disk.DiskStatus{}, "the last ones on the node that was down may be"},
		{disk.DiskStatus{LostBytes: &none, LostMostBytes: &none}, "none"},
		{disk.DiskStatus{LostBytes: &none}, "unknown, the node that was down had not reported"},
		{disk.DiskStatus{LostBytes: &least, LostReportedAt: &at}, "at least 48 MiB, at most unknown (reported at 2026-11-27T08:18:02Z)"},
		{disk.DiskStatus{LostBytes: &least, LostMostBytes: &most, LostReportedAt: &at}, "at least 48 MiB, at most 1.5 GiB (reported at 2026-11-27T08:18:02Z)"},
	} {
		if got := lost(&tc.s); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
