package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// tableEntry is a line of the process table.
type tableEntry struct{ pid, parent, session int }

// processTable reads the process table.
func processTable() []tableEntry {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1) // a partial table is better than none
	var list []tableEntry
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + n + "/stat")
		if err != nil {
			continue // ended
		}
		// The name, in parentheses, may contain anything.
		s := string(b)
		f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
		if len(f) < 4 || f[0] == "Z" {
			continue
		}
		parent, _ := strconv.Atoi(f[1])
		session, _ := strconv.Atoi(f[3])
		list = append(list, tableEntry{pid, parent, session})
	}
	return list
}

// killTree sends sig to all descendants of root, and with itself to root and
// its session too. It returns how many there were.
func killTree(root int, itself bool, sig syscall.Signal) int {
	list := processTable()
	in := map[int]bool{root: true}
	for {
		grown := false
		for _, p := range list {
			if !in[p.pid] && p.pid != os.Getpid() && (in[p.parent] || itself && p.session == root) {
				in[p.pid], grown = true, true
			}
		}
		if !grown {
			break
		}
	}
	if !itself {
		delete(in, root)
	}
	n := 0
	for _, p := range list {
		if in[p.pid] {
			n++
			_ = syscall.Kill(p.pid, sig) // it may have ended
		}
	}
	return n
}
