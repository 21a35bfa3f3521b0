package disk

import (
	"testing"
	"time"

	"miren.dev/runtime/api/disk"
)

// TestLossIsSaid: what `r disk show` prints of a takeover says what is known, and what
// is not.
func TestLossIsSaid(t *testing.T) {
	none, least, most, at := int64(0), int64(48<<20), int64(3<<29), time.Date(2026, 11, 27, 8, 18, 2, 0, time.UTC)
	for _, tc := range []struct {
		s    disk.DiskStatus
		want string
	}{
		{disk.DiskStatus{}, ": the last writes on the node that was down may be lost"},
		{disk.DiskStatus{LostBytes: &none, LostMostBytes: &none}, ": no write was lost"},
		{disk.DiskStatus{LostBytes: &none}, ": how many bytes of writes were lost is unknown, the node that was down had not reported"},
		{disk.DiskStatus{LostBytes: &least, LostReportedAt: &at}, ": at least 48 MiB of writes were lost, as the node reported at 2026-11-27T08:18:02Z; how many at most is unknown"},
		{disk.DiskStatus{LostBytes: &least, LostMostBytes: &most, LostReportedAt: &at}, ": at least 48 MiB and at most 1.5 GiB of writes were lost; the node last reported at 2026-11-27T08:18:02Z"},
	} {
		if got := lost(&tc.s); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
