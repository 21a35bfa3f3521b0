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

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// Exit returns how the main process of id ended, from the record that its
// agent wrote or End did. NotFound while there is none.
func (h *Hub) Exit(id string) (execution.Exit, error) {
	if err := checkID(id); err != nil {
		return execution.Exit{}, err
	}
	dir, err := h.openSpool(id)
	if err == nil {
		defer dir.Close()
		var f *os.File
		f, _, err = openGuestFile(dir, agentproto.ExitName)
		if err == nil {
			defer f.Close()
			return readExit(id, f)
		}
	}
	if !errs.Is(err, errs.NotFound) {
		return execution.Exit{}, err
	}
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

// exitFrom translates what an agent says.
func exitFrom(e agentproto.Exit) execution.Exit {
	x := execution.Exit{Cause: execution.CauseExit, Code: int(min(max(e.Code, 0), 255)), At: time.Unix(0, e.At), Message: e.Message}
	if x.Message == "" && e.Signal > 0 {
		x.Message = fmt.Sprintf("ended by signal %d", e.Signal)
	}
	return x
}

// writeEnded records an end that no agent could.
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

// hasEnded says whether nothing more comes into the log of id.
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
