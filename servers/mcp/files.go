package mcpserver

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

const (
	encodingText   = "text"
	encodingBase64 = "base64"
	// filesPage is the number of entries of one answer.
	filesPage = 500
)

type writeInput struct {
	Sandbox    string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Path       string `json:"path" jsonschema:"path; a relative one is below the working directory"`
	Content    string `json:"content" jsonschema:"the content"`
	Encoding   string `json:"encoding,omitempty" jsonschema:"text (default), or base64 for content that is no text"`
	Append     bool   `json:"append,omitempty" jsonschema:"add the content at the end of the file"`
	Executable bool   `json:"executable,omitempty" jsonschema:"the file may be executed"`
}

type fileOutput struct {
	Path       string    `json:"path"`
	Type       string    `json:"type" jsonschema:"file, directory, symlink or other"`
	SizeBytes  int64     `json:"size_bytes"`
	Mode       string    `json:"mode" jsonschema:"permission bits, octal"`
	ModifiedAt time.Time `json:"modified_at"`
	Target     string    `json:"target,omitempty" jsonschema:"target of a symbolic link"`
}

func describeFile(path string, f *sandbox.FileInfo) *fileOutput {
	return &fileOutput{path, string(f.Type), f.SizeBytes, fmt.Sprintf("%04o", f.Mode), f.ModifiedAt, f.Target}
}

// fits returns an error for a file that is larger than the session permits.
func (s *session) fits(size int64) error {
	if s.MaxFile > 0 && size > s.MaxFile {
		return errs.New(errs.ResourceExhausted, "the file has %d bytes, this server permits %d", size, s.MaxFile).WithHint("split it")
	}
	return nil
}

func (s *session) writeFile(ctx context.Context, _ *call, in *writeInput) (*fileOutput, error) {
	content := []byte(in.Content)
	switch in.Encoding {
	case "", encodingText:
	case encodingBase64:
		var err error
		if content, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return nil, errs.New(errs.InvalidArgument, "content is not base64: %w", err).WithHint("use the standard alphabet with padding, or encoding text")
		}
	default:
		return nil, errs.New(errs.InvalidArgument, "encoding is %q, it may be text or base64", in.Encoding)
	}
	if err := s.fits(int64(len(content))); err != nil {
		return nil, err
	}
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	req := &sandbox.WriteFileRequest{Sandbox: sb.GetID(), Path: in.Path, Parents: new(true)}
	if in.Append {
		req.Write = sandbox.WriteModeAppend
	}
	if in.Executable {
		req.Mode = new(int64(0o755))
	}
	info, err := s.write(ctx, req, content)
	if err != nil {
		return nil, err
	}
	return describeFile(in.Path, info), nil
}

// write writes a file.
func (s *session) write(ctx context.Context, req *sandbox.WriteFileRequest, content []byte) (*sandbox.FileInfo, error) {
	st, err := s.files.Write(ctx, req)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	// The reason of a failed write is what Recv returns.
	if _, err := io.Copy(st.Writer(), bytes.NewReader(content)); err == nil {
		_ = st.CloseSend()
	}
	return st.Recv()
}

type readInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Path    string `json:"path" jsonschema:"path; a relative one is below the working directory"`
	Offset  int64  `json:"offset,omitempty" jsonschema:"position of the first byte"`
	Length  int64  `json:"length,omitempty" jsonschema:"bytes to read, at most; an answer has 64 KiB unless the server is configured otherwise"`
}

type readOutput struct {
	Path       string `json:"path"`
	Content    string `json:"content"`
	Encoding   string `json:"encoding" jsonschema:"text, or base64 for content that is no text"`
	SizeBytes  int64  `json:"size_bytes" jsonschema:"size of the whole file"`
	Bytes      int64  `json:"bytes" jsonschema:"bytes of the content"`
	NextOffset int64  `json:"next_offset,omitempty" jsonschema:"offset with which to read on; absent: this was the end"`
}

func (o *readOutput) content() []sdk.Content {
	text := o.Content
	if o.Encoding == encodingBase64 {
		text = fmt.Sprintf("[%d bytes that are no text, in base64]\n%s", o.Bytes, text)
	}
	if o.NextOffset > 0 {
		text += fmt.Sprintf("\n[cut here: the file has %d bytes, read on with offset %d]", o.SizeBytes, o.NextOffset)
	}
	return []sdk.Content{&sdk.TextContent{Text: text}}
}

func (s *session) readFile(ctx context.Context, _ *call, in *readInput) (*readOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if in.Offset < 0 || in.Length < 0 {
		return nil, errs.New(errs.InvalidArgument, "offset is %d and length %d; neither may be negative", in.Offset, in.Length)
	}
	length := int64(s.MaxOutput)
	if in.Length > 0 {
		length = min(length, in.Length)
	}
	info, content, err := s.read(ctx, &sandbox.ReadFileRequest{Sandbox: sb.GetID(), Path: in.Path, Offset: &in.Offset, Length: &length})
	if err != nil {
		return nil, err
	}
	end := in.Offset + int64(len(content))
	more := info.SizeBytes > end || int64(len(content)) == length && info.SizeBytes < end // files in /proc have no size
	if more {
		content = wholeRunes(content)
	}
	out := &readOutput{Path: in.Path, SizeBytes: info.SizeBytes, Bytes: int64(len(content)), Encoding: encodingText, Content: string(content)}
	if !utf8.Valid(content) || bytes.IndexByte(content, 0) >= 0 {
		out.Encoding, out.Content = encodingBase64, base64.StdEncoding.EncodeToString(content)
	}
	if more {
		out.NextOffset = in.Offset + out.Bytes
	}
	return out, nil
}

// wholeRunes returns text without the part of a character at its end.
func wholeRunes(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i < len(b); i++ {
		if tail := b[len(b)-i:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// read reads a part of a file.
func (s *session) read(ctx context.Context, req *sandbox.ReadFileRequest) (*sandbox.FileInfo, []byte, error) {
	st, err := s.files.Read(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	defer st.Close()
	var info *sandbox.FileInfo
	var content []byte
	for {
		m, err := st.Recv()
		switch {
		case errors.Is(err, io.EOF) && info != nil:
			return info, content, nil
		case err != nil:
			return nil, nil, err
		case m.Info != nil:
			info = m.Info
		}
		content = append(content, m.Data...)
	}
}

type removeInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Path    string `json:"path" jsonschema:"path; a relative one is below the working directory"`
}

type removedOutput struct {
	Removed string `json:"removed" jsonschema:"path of what was removed"`
}

func (s *session) removeFile(ctx context.Context, _ *call, in *removeInput) (*removedOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	return &removedOutput{in.Path}, s.files.Remove(ctx, &sandbox.RemoveFileRequest{Sandbox: sb.GetID(), Path: in.Path, Recursive: new(true)})
}

type listFilesInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Path    string `json:"path,omitempty" jsonschema:"directory; default: the working directory"`
	After   string `json:"after,omitempty" jsonschema:"only names after this one, to read on"`
}

type listFilesOutput struct {
	Files []*fileOutput `json:"files"`
	More  bool          `json:"more" jsonschema:"there are more: read on with after, the name of the last one"`
}

func (s *session) listFiles(ctx context.Context, _ *call, in *listFilesInput) (*listFilesOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	dir := in.Path
	if dir == "" {
		dir = "."
	}
	resp, err := s.files.List(ctx, &sandbox.ListFilesRequest{Sandbox: sb.GetID(), Path: dir, After: in.After, Limit: new(int64(filesPage))})
	if err != nil {
		return nil, err
	}
	out := &listFilesOutput{More: resp.More, Files: []*fileOutput{}}
	for i := range resp.Files {
		out.Files = append(out.Files, describeFile(resp.Files[i].Name, &resp.Files[i]))
	}
	return out, nil
}
