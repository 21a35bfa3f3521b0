package transfer

import (
	"errors"
	"io"
	"path/filepath"
	"strings"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
)

// Outputs saves files and directories that a program made in its sandbox. Its
// methods are for one goroutine.
type Outputs struct {
	Paths  []string // in the sandbox, for the request
	local  []string
	stream *io.PipeWriter // of the output that is being saved
	saved  chan error     // receives the end of the saving
	index  int64          // of that output
	errs   []error
}

// NewOutputs reads PATH and PATH:LOCAL. Without LOCAL an output is saved in the
// current directory.
func NewOutputs(args []string) *Outputs {
	o := &Outputs{}
	for _, arg := range args {
		path, local, ok := strings.Cut(arg, ":")
		if !ok || local == "" {
			local = "." + string(filepath.Separator)
		}
		o.Paths, o.local = append(o.Paths, path), append(o.local, local)
	}
	return o
}

// Receive takes a part of an output.
func (o *Outputs) Receive(d *sandbox.OutputData) {
	if d.Index < 0 || d.Index >= int64(len(o.Paths)) {
		return // it was not asked for
	}
	if d.Info != nil {
		o.end()
		r, w := io.Pipe()
		o.stream, o.saved, o.index = w, make(chan error, 1), d.Index
		c := &Content{Reader: r, Dir: d.Info.Type == sandbox.FileTypeDirectory, Mode: ModeOf(d.Info)}
		local, base, saved := o.local[d.Index], Base(o.Paths[d.Index]), o.saved
		go func() {
			err := c.Save(local, base)
			r.CloseWithError(err) // so that the program's output does not wait
			saved <- err
		}()
	}
	if o.stream != nil && len(d.Data) > 0 {
		_, _ = o.stream.Write(d.Data) // it fails with the saving, whose error end reports
	}
	if d.Error == "" {
		return
	}
	if o.stream != nil && o.index == d.Index { // not all of it came
		o.stream.CloseWithError(io.ErrUnexpectedEOF)
		<-o.saved
		o.stream = nil
	}
	o.fail(d.Index, errors.New(d.Error))
}

func (o *Outputs) fail(index int64, err error) {
	o.errs = append(o.errs, errs.New(errs.FailedPrecondition, "output %s: %w", o.Paths[index], err))
}

// end waits until the last output is saved.
func (o *Outputs) end() {
	if o.stream == nil {
		return
	}
	_ = o.stream.Close() // it never fails
	if err := <-o.saved; err != nil {
		o.fail(o.index, err)
	}
	o.stream = nil
}

// Finish ends the saving after a call that ended with the exit code of the
// program, or with err. It prints which outputs could not be saved, and returns
// the exit code of the command: the program's, or that of a failure.
func (o *Outputs) Finish(c *console.Console, code int, err error) (int, error) {
	if err != nil {
		if o.stream != nil {
			o.stream.CloseWithError(io.ErrUnexpectedEOF) // not all of it came
		}
		o.end()
		return code, err
	}
	o.end()
	for _, err := range o.errs {
		exit.Print(c, err)
	}
	if code == exit.OK && len(o.errs) > 0 {
		code = exit.Failed
	}
	return code, nil
}
