package main

import (
	"os"

	"miren.dev/runtime/pkg/agentproto"
)

// newWarmUp returns what begins the work of a channel of KindWarm. The first process of a sandbox finds neither the
// agent's code nor the image's loader and C library in memory: a shell that does nothing loads them.
func newWarmUp(c *channel) func() {
	p := newProcess(c, agentproto.Process{Command: []string{"/bin/sh", "-c", ":"}, WorkDir: "/", NoInput: true})
	return func() {
		go func() {
			c.agent.claims.openFiles()
			p.begin()
		}()
	}
}

// openFiles has the sandbox's kernel copy the files that a claim changes from the image, which takes most of the time of
// changing them.
func (c *claims) openFiles() {
	if os.Getpid() != 1 { // in tests they would be the machine's
		return
	}
	c.files.Lock()
	defer c.files.Unlock()
	for _, path := range []string{hostnameFile, hostsFile} {
		replaceFile(path, func(b []byte) []byte { return b })
	}
}
