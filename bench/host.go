package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// host describes the machine of the measurement.
type host struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
	System string `json:"system"`
	Disk   string `json:"disk"`
	Go     string `json:"go"`
	Commit string `json:"commit"`
	Load   string `json:"load"` // average of the last minute before and after
}

func describeHost(o options) host {
	h := host{CPU: field("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Go: runtime.Version(), System: field("/etc/os-release", "PRETTY_NAME")}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		h.Memory = fmt.Sprintf("%d GiB", (si.Totalram*uint64(si.Unit)+1<<29)>>30)
	}
	h.Disk = describeDisk(o.dir)
	if out, err := exec.Command("git", "-C", o.src, "rev-parse", "--short=12", "HEAD").Output(); err == nil {
		h.Commit = strings.TrimSpace(string(out))
	}
	return h
}

// field returns the value of "name : value" or "name=value" in a file.
func field(path, name string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for l := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
		if k, v, ok := strings.Cut(l, "="); ok && k == name {
			return strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	return ""
}

// describeDisk names the file system and device that dir is on.
func describeDisk(dir string) string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	dir, _ = filepath.EvalSymlinks(dir)
	best, desc := -1, ""
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		sep := 0
		for i, w := range f {
			if w == "-" {
				sep = i
			}
		}
		if len(f) < 5 || sep == 0 || sep+2 >= len(f) {
			continue
		}
		at := strings.TrimSuffix(f[4], "/")
		if (dir == at || strings.HasPrefix(dir, at+"/")) && len(at) >= best {
			best, desc = len(at), f[sep+1]+" on "+f[sep+2]
		}
	}
	return desc
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	first, _, _ := bytes.Cut(b, []byte(" "))
	return string(first)
}
