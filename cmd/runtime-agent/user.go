package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// account is the user and groups that a process runs as.
type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

func (u account) credential() *syscall.Credential {
	if !privileged() { // in tests: setgroups is not permitted, and not needed
		return nil
	}
	return &syscall.Credential{Uid: u.uid, Gid: u.gid, Groups: u.groups}
}

// lookupUser resolves user[:group], each a name or a number of the guest. A
// number need not be in the guest's files. Empty means root.
func lookupUser(spec string) (account, error) {
	user, group, hasGroup := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	u := account{home: "/"}
	name, known := "", false
	err := eachEntry("/etc/passwd", 7, func(f []string) bool {
		if f[0] != user && f[2] != user {
			return true
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 31)
		gid, err2 := strconv.ParseUint(f[3], 10, 31)
		if err1 != nil || err2 != nil {
			return true
		}
		name, known = f[0], true
		u.uid, u.gid = uint32(uid), uint32(gid)
		if f[5] != "" {
			u.home = f[5]
		}
		return f[0] != user // a name is better than a number
	})
	if err != nil {
		return account{}, err
	}
	if !known {
		uid, err := strconv.ParseUint(user, 10, 31)
		if err != nil {
			return account{}, fmt.Errorf("no user %q in /etc/passwd", user)
		}
		u.uid = uint32(uid)
		if uid == 0 {
			u.home = "/root"
		}
	}
	if u.uid == agentproto.VaultUID {
		return account{}, fmt.Errorf("user %d is reserved", u.uid)
	}
	if hasGroup {
		gid, err := lookupGroup(group)
		if err != nil {
			return account{}, err
		}
		u.gid = gid
	}
	u.groups = []uint32{u.gid}
	if known && !hasGroup {
		err := eachEntry("/etc/group", 4, func(f []string) bool {
			gid, err := strconv.ParseUint(f[2], 10, 31)
			if err == nil && uint32(gid) != u.gid && contains(f[3], name) && len(u.groups) < 256 {
				u.groups = append(u.groups, uint32(gid))
			}
			return true
		})
		if err != nil {
			return account{}, err
		}
	}
	return u, nil
}

func lookupGroup(group string) (uint32, error) {
	found, gid := false, uint32(0)
	err := eachEntry("/etc/group", 4, func(f []string) bool {
		if n, err := strconv.ParseUint(f[2], 10, 31); err == nil && f[0] == group {
			found, gid = true, uint32(n)
		}
		return !found
	})
	if err != nil {
		return 0, err
	}
	if !found {
		n, err := strconv.ParseUint(group, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("no group %q in /etc/group", group)
		}
		gid = uint32(n)
	}
	return gid, nil
}

func contains(list, name string) bool {
	for n := range strings.SplitSeq(list, ",") {
		if n == name {
			return true
		}
	}
	return false
}

// tables are the files that were read for eachEntry. They are only used on the spawner's thread.
var tables = map[string]*userTable{}

// userTable is the content of a file when it was read.
type userTable struct {
	as      unix.Stat_t
	content string
}

// readTable returns the content of a file, and reads it again only when it has
// changed.
func readTable(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if t := tables[path]; t != nil && t.as.Dev == st.Dev && t.as.Ino == st.Ino && t.as.Size == st.Size && t.as.Mtim == st.Mtim && t.as.Ctim == st.Ctim {
		return t.content, nil
	}
	b, err := readFile(path, maxTable)
	if err != nil {
		return "", err
	}
	if len(b) > maxCached {
		delete(tables, path)
		return string(b), nil
	}
	tables[path] = &userTable{as: st, content: string(b)}
	return tables[path].content, nil
}

// Bounds of the files of users and groups, in bytes: of a read, and of the
// cache.
const (
	maxTable  = 8 << 20
	maxCached = 256 << 10
)

// eachEntry calls entry with the fields of each line that has enough of them,
// until it returns false. A missing file has none.
func eachEntry(path string, fields int, entry func([]string) bool) error {
	content, err := readTable(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(content) {
		if f := strings.Split(strings.TrimRight(line, "\r\n"), ":"); len(f) >= fields && !entry(f) {
			return nil
		}
	}
	return nil
}
