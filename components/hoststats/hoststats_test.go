package hoststats

import "testing"

// TestRead: every figure of this machine is there, and CPU time grows.
func TestRead(t *testing.T) {
	a, err := Read(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.CPUSeconds <= 0 || a.MemoryUsed <= 0 || a.MemoryUsed >= a.MemoryTotal || a.Processes <= 0 || a.DiskUsed < 0 || a.DiskUsed > a.DiskTotal || a.DiskTotal <= 0 {
		t.Errorf("%+v", a)
	}
	b, err := Read(t.TempDir(), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if b.CPUSeconds < a.CPUSeconds || b.ReceivedBytes != 0 || b.SentBytes != 0 {
		t.Errorf("%+v after %+v", b, a)
	}
	if !isVirtual("veth12") || isVirtual("eth0") {
		t.Error("wrong interfaces are counted")
	}
}
