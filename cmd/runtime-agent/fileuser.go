package main

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// fileUsers are the threads that work on files as users of the sandbox. The
// effective user, groups and capabilities of such a thread are those of a
// process of its user; its real and saved user stay the agent's, so that such a
// process cannot send it a signal.
type fileUsers struct {
	// One for each thread that works: on short work, and on work that waits for
	// its caller.
	short, long chan struct{}

	mu      sync.Mutex // also held by whileIdle's function
	working int        // threads that work
	rested  sync.Cond  // working became 0
	idle    []*fileUser
}

// fileUser is one of the threads.
type fileUser struct {
	account account
	jobs    chan func()
	expire  *time.Timer
}

// Bounds of the threads; maxFileUsers is for either kind of work.
const (
	maxFileUsers  = 16
	idleFileUsers = 4
	fileUserIdle  = 10 * time.Second
)

func newFileUsers() *fileUsers {
	u := &fileUsers{short: make(chan struct{}, maxFileUsers), long: make(chan struct{}, maxFileUsers)}
	u.rested.L = &u.mu
	return u
}

// whileIdle calls f when no thread works. None begins before f returns; threads may begin while whileIdle waits.
func (u *fileUsers) whileIdle(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.working > 0 {
		u.rested.Wait()
	}
	f()
}

// count adds n to the number of threads that work.
func (u *fileUsers) count(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.working += n; u.working == 0 {
		u.rested.Broadcast()
	}
}

// do calls f on a thread of a user, and waits. slots is one of those of u.
func (u *fileUsers) do(slots chan struct{}, who account, f func() agentproto.Failure) agentproto.Failure {
	slots <- struct{}{}
	defer func() { <-slots }()
	w, err := u.get(who)
	if err != nil {
		return failed("become the user", err)
	}
	var result agentproto.Failure
	done := make(chan struct{})
	w.jobs <- func() {
		defer close(done)
		u.count(1)
		defer u.count(-1)
		if err := noCapabilities(); err != nil { // they may have been given again
			result = failed("drop capabilities", err)
			return
		}
		result = f()
	}
	<-done
	u.put(w)
	return result
}

func (u *fileUsers) get(who account) (*fileUser, error) {
	u.mu.Lock()
	for i, w := range u.idle {
		if w.account.uid == who.uid && w.account.gid == who.gid && slices.Equal(w.account.groups, who.groups) && w.expire.Stop() {
			u.idle = slices.Delete(u.idle, i, i+1)
			u.mu.Unlock()
			return w, nil
		}
	}
	u.mu.Unlock()
	w := &fileUser{account: who, jobs: make(chan func())}
	began := make(chan error)
	go w.run(began)
	return w, <-began
}

func (u *fileUsers) put(w *fileUser) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.idle) >= idleFileUsers {
		close(w.jobs)
		return
	}
	w.expire = time.AfterFunc(fileUserIdle, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if i := slices.Index(u.idle, w); i >= 0 {
			u.idle = slices.Delete(u.idle, i, i+1)
			close(w.jobs)
		}
	})
	u.idle = append(u.idle, w)
}

// run keeps its thread, which ends with it.
func (w *fileUser) run(began chan<- error) {
	runtime.LockOSThread()
	err := become(w.account)
	began <- err
	if err != nil {
		return
	}
	for job := range w.jobs {
		job()
	}
}

// become gives this thread the effective user and groups.
func become(who account) error {
	if !privileged() { // in tests without root
		return nil
	}
	groups := who.groups
	if len(groups) == 0 {
		groups = []uint32{who.gid}
	}
	const same = ^uintptr(0)
	// Not of package syscall, which changes all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
		return fmt.Errorf("set groups: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, same, uintptr(who.gid), same); errno != 0 {
		return fmt.Errorf("set group: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(who.uid), same); errno != 0 {
		return fmt.Errorf("set user: %w", errno)
	}
	return nil
}

// noCapabilities makes no capability effective on this thread. They stay
// permitted, since all threads must be able to set those of the agent.
func noCapabilities() error {
	if !privileged() {
		return nil
	}
	hdr, data, err := capabilities()
	if err != nil {
		return err
	}
	data[0].Effective, data[1].Effective = 0, 0
	return unix.Capset(&hdr, &data[0])
}

// account resolves a user of the sandbox.
func (a *agent) account(user string) (account, error) {
	if user == "" {
		user = a.claims.current().user
	}
	var who account
	var err error
	done := make(chan struct{})
	a.forks.jobs <- func() { // whose thread has the files of users
		defer close(done)
		who, err = lookupUser(user)
	}
	<-done
	return who, err
}
