package holder

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// sendTimeout bounds how long a peer may leave its packets unread.
const sendTimeout = 10 * time.Second

// send sends a message with files attached as one packet.
func send(c *net.UnixConn, msg any, files []int) error {
	p, err := json.Marshal(msg)
	if err != nil {
		return errs.Wrap(err, "encode a message")
	}
	if len(p) > maxPacket || len(files) > maxFiles {
		return errs.New(errs.ResourceExhausted, "message of %d bytes with %d files", len(p), len(files))
	}
	var rights []byte
	if len(files) > 0 {
		rights = syscall.UnixRights(files...)
	}
	if err := c.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(p, rights, nil)
	return errs.Wrap(err, "send a message")
}

// receive returns the next packet, which is valid until the next call, and the
// files attached to it. At the end of the connection the packet is nil.
func receive(c *net.UnixConn, buf []byte) ([]byte, []int, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, nOOB, flags, _, err := c.ReadMsgUnix(buf, oob)
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) || (err == nil && n == 0) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, errs.Wrap(err, "receive a message")
	}
	var files []int
	controls, err := syscall.ParseSocketControlMessage(oob[:nOOB])
	for _, m := range controls {
		fds, e := syscall.ParseUnixRights(&m)
		if e != nil {
			err = e
			continue
		}
		files = append(files, fds...)
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errs.New(errs.ResourceExhausted, "a message is too large")
	}
	if err != nil {
		closeAll(files)
		return nil, nil, errs.Wrap(err, "receive a message")
	}
	return buf[:n], files, nil
}
