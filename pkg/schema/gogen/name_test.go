package gogen

import "testing"

func TestGoName(t *testing.T) {
	for in, want := range map[string]string{
		"cpu_millis": "CPUMillis", "memory_bytes": "MemoryBytes", "pids": "PIDs", "ttl": "TTL", "url": "URL",
		"exit_code": "ExitCode", "log_tail": "LogTail", "id": "ID", "app_id": "AppID", "oom": "OOM", "oci": "OCI",
		"sandbox_pool": "SandboxPool", "x": "X", "a_b1": "AB1", "": "",
	} {
		if got := GoName(in); got != want {
			t.Errorf("GoName(%q) = %q, want %q", in, got, want)
		}
	}
}
