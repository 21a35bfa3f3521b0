package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// Exit returns how the main process of id ended, from the record of its agent,
// else from the record of End. NotFound while there is none. The guest can
// write any bytes into its record: a damaged record means a crash, as does a
// record of End that a power loss cut short.
func (h *Hub) Exit(id string) (execution.Exit, error) {
	if err := checkID(id); err != nil {
		return execution.Exit{}, err
	}
	said, err := h.agentExit(id)
	if err == nil || !errs.Is(err, errs.NotFound) && !errs.Is(err, errs.Corrupt) {
		return said, err
	}
	recorded, ended := h.readEnded(id)
	if errs.Is(ended, errs.NotFound) && errs.Is(err, errs.Corrupt) || errs.Is(ended, errs.Corrupt) {
		return h.damaged(id), nil
	}
	return recorded, ended
}

// agentExit reads the record of the agent. NotFound if there is none, Corrupt
// if it is damaged.
func (h *Hub) agentExit(id string) (execution.Exit, error) {
	dir, err := h.openSpool(id)
	if err != nil {
		return execution.Exit{}, missing(err, id)
	}
	defer dir.Close()
	f, _, err := openGuestFile(dir, agentproto.ExitName)
	if err != nil {
		return execution.Exit{}, missing(err, id)
	}
	defer f.Close()
	return readExit(id, f)
}

// missing turns the error for a missing file into NotFound.
func missing(err error, id string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.NotFound, "the end of sandbox %s is not recorded", id)
	}
	return err
}

// readEnded reads the record of End, with the same errors.
func (h *Hub) readEnded(id string) (execution.Exit, error) {
	b, err := os.ReadFile(filepath.Join(h.logs(id), endedName))
	if errors.Is(err, fs.ErrNotExist) {
		return execution.Exit{}, errs.New(errs.NotFound, "the end of sandbox %s is not recorded", id)
	}
	if err != nil {
		return execution.Exit{}, errs.Wrap(err, "read end of %s", id)
	}
	var e execution.Exit
	if err := json.Unmarshal(b, &e); err != nil {
		return execution.Exit{}, errs.New(errs.Corrupt, "end of %s: %w", id, err)
	}
	return e, nil
}

// damaged is the exit of a sandbox with a damaged record. Its time is the time
// of the record's last change, which the guest cannot set.
func (h *Hub) damaged(id string) execution.Exit {
	e := execution.Exit{Cause: execution.CauseCrash, Code: 255, Message: "the record of its end is damaged"}
	for _, path := range []string{filepath.Join(h.spool(id), agentproto.ExitName), h.spool(id), filepath.Join(h.logs(id), endedName)} {
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			e.At = time.Unix(st.Ctim.Unix())
			break
		}
	}
	return e
}

func readExit(id string, r io.Reader) (execution.Exit, error) {
	b, err := io.ReadAll(io.LimitReader(r, agentproto.MaxExitFile+1))
	if err != nil {
		return execution.Exit{}, errs.Wrap(err, "read exit record of %s", id)
	}
	e, err := agentproto.ParseExitFile(b)
	if err != nil {
		return execution.Exit{}, errs.New(errs.Corrupt, "exit record of %s: %w", id, err)
	}
	return exitFrom(e), nil
}

// exitFrom translates an agent's exit.
func exitFrom(e agentproto.Exit) execution.Exit {
	x := execution.Exit{Cause: execution.CauseExit, Code: int(min(max(e.Code, 0), 255)), At: time.Unix(0, e.At), Message: e.Message}
	if x.Message == "" && e.Signal > 0 {
		x.Message = fmt.Sprintf("ended by signal %d", e.Signal)
	}
	return x
}

// writeEnded records an end that no agent could record.
func (h *Hub) writeEnded(id string, e execution.Exit) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	err = atomicfile.Write(filepath.Join(h.logs(id), endedName), b, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there are no logs to end
	}
	return errs.Wrap(err, "record end of %s", id)
}

// hasEnded reports whether no more lines come into the log of id.
func (h *Hub) hasEnded(id string, spool *os.File) bool {
	if f, _, err := openGuestFile(spool, agentproto.ExitName); err == nil {
		f.Close()
		return true
	}
	if _, err := os.Lstat(filepath.Join(h.logs(id), endedName)); err == nil {
		return true
	}
	_, err := os.Lstat(h.dir(id))
	return errors.Is(err, fs.ErrNotExist)
}
