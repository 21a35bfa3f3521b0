package mcpserver

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/pkg/errs"
)

const (
	plainText = "text/plain"
	// maxResults bounds the values of a cell.
	maxResults = 100
	// maxImage bounds an image in an answer, in bytes of base64.
	maxImage = 8 << 20
)

// images are the types of values that are shown as images.
var images = []string{"image/png", "image/jpeg"}

type cellInput struct {
	Sandbox        string            `json:"sandbox" jsonschema:"id or name of a sandbox of template code-interpreter-v1"`
	Code           string            `json:"code" jsonschema:"the code"`
	Language       string            `json:"language,omitempty" jsonschema:"language; python (default), javascript, typescript and shell keep their state"`
	Context        string            `json:"context,omitempty" jsonschema:"id of another context than the language's own"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"environment variables during this call"`
	TimeoutSeconds int64             `json:"timeout_seconds,omitempty" jsonschema:"the code is interrupted after so many seconds; default 300"`
}

type cellValue struct {
	Text  string   `json:"text,omitempty"`
	Types []string `json:"types" jsonschema:"media types that it has; images are content of the result"`
	Main  bool     `json:"main" jsonschema:"it is the value of the last expression"`
}

type cellError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback,omitempty"`
}

type cellOutput struct {
	Outcome   string      `json:"outcome" jsonschema:"completed, failed (the code raised an error), interrupted, timeout or ended (its process ended)"`
	Stdout    string      `json:"stdout"`
	Stderr    string      `json:"stderr"`
	Truncated bool        `json:"truncated" jsonschema:"output was cut in its middle, where a mark says so"`
	Values    []cellValue `json:"values"`
	Error     *cellError  `json:"error,omitempty"`
	StateLost bool        `json:"state_lost" jsonschema:"variables of earlier calls are gone"`
	images    []sdk.Content
}

func (o *cellOutput) content() []sdk.Content {
	var parts []string
	add := func(text string) {
		if text = strings.TrimRight(text, "\n"); text != "" {
			parts = append(parts, text)
		}
	}
	add(o.Stdout)
	if o.Stderr != "" {
		add("[stderr]\n" + o.Stderr)
	}
	for _, v := range o.Values {
		add(v.Text)
	}
	if o.Error != nil {
		add("[" + o.Error.Name + ": " + o.Error.Value + "]\n" + o.Error.Traceback)
	}
	if o.Outcome != string(interpreter.OutcomeCompleted) || len(parts) == 0 && len(o.images) == 0 {
		add("[" + o.Outcome + "]")
	}
	if o.StateLost {
		add("[variables of earlier calls are gone]")
	}
	var out []sdk.Content
	if len(parts) > 0 {
		out = append(out, &sdk.TextContent{Text: strings.Join(parts, "\n")})
	}
	return append(out, o.images...)
}

func (s *session) runCell(ctx context.Context, c *call, in *cellInput) (*cellOutput, error) {
	limit, err := s.limit(&processInput{TimeoutSeconds: in.TimeoutSeconds})
	if err != nil {
		return nil, err
	}
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	st, err := s.code.Run(ctx, &interpreter.RunRequest{
		Sandbox: sb.GetID(), Code: in.Code, Language: in.Language, Context: in.Context, Env: in.Env, Timeout: new(limit),
	})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	out, stdout, stderr := &cellOutput{Values: []cellValue{}}, &bounded{max: s.MaxOutput}, &bounded{max: s.MaxOutput}
	start := time.Now()
	for {
		ev, err := st.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, errs.New(errs.Unavailable, "the server ended the call without the end of the code").WithHint("call the tool again")
		case err != nil:
			return nil, err
		case ev.Result != nil:
			s.addValue(out, ev.Result)
		case ev.Error != nil:
			trace := &bounded{max: s.MaxOutput}
			_, _ = io.WriteString(trace, ev.Error.Traceback) // it never fails
			out.Error = &cellError{ev.Error.Name, ev.Error.Value, trace.String()}
		case ev.End != nil:
			out.Outcome, out.StateLost = string(ev.End.Outcome), ev.End.StateLost != nil && *ev.End.StateLost
			out.Stdout, out.Stderr = stdout.String(), stderr.String()
			out.Truncated = stdout.cut() > 0 || stderr.cut() > 0
			return out, nil
		}
		_, _ = io.WriteString(stdout, ev.Stdout)
		_, _ = io.WriteString(stderr, ev.Stderr)
		c.say("running since %s, %d bytes of output", start.UTC().Format(time.TimeOnly), stdout.total+stderr.total)
	}
}

// addValue adds a value: its text, and the best image that it has.
func (s *session) addValue(out *cellOutput, r *interpreter.Result) {
	if len(out.Values) == maxResults {
		return
	}
	text := &bounded{max: s.MaxOutput}
	_, _ = io.WriteString(text, r.Formats[plainText]) // it never fails
	v := cellValue{Text: text.String(), Types: slices.Sorted(maps.Keys(r.Formats)), Main: r.Main != nil && *r.Main}
	for _, kind := range images {
		data := r.Formats[kind]
		if data == "" {
			continue
		}
		if b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data)); err != nil || len(data) > maxImage {
			v.Text += fmt.Sprintf("\n[an image of %d bytes is not shown: save it to a file]", len(data))
		} else {
			out.images = append(out.images, &sdk.ImageContent{Data: b, MIMEType: kind})
		}
		break
	}
	out.Values = append(out.Values, v)
}
