package gitrepo

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// refuses has the next push checked out within limits, and tells its client why that fails.
func (e *env) refuses(limits Limits) {
	e.accept = func(ctx context.Context, p *Push, w io.Writer) error {
		tree, err := p.Checkout(ctx, p.Updates[0].Commit, limits)
		if err != nil {
			fmt.Fprintln(w, err)
			return err
		}
		return tree.Remove()
	}
}

// TestFolderBomb: folders without a file, which name each other ten times, take no time.
func TestFolderBomb(t *testing.T) {
	e := newEnv(t, Config{})
	tree := e.mktree("")
	for range 12 {
		var b strings.Builder
		for i := range 10 {
			fmt.Fprintf(&b, "040000 tree %s\t%d\n", tree, i)
		}
		tree = e.mktree(b.String())
	}
	commit := e.Git("commit-tree", "-m", "bomb", tree)
	e.refuses(Limits{Files: 100, Bytes: 1 << 20})
	e.push(true, "more than 400 folders", commit+":refs/heads/bomb")
	if left := e.leftovers(); len(left) > 0 {
		t.Errorf("the push left %v", left)
	}
}

// TestObjectBomb: an object that is small in the pack and has no end without it ends with the CPU time of git. Of few
// objects git writes a file each, of many it keeps the pack.
func TestObjectBomb(t *testing.T) {
	e := newEnv(t, Config{CPU: time.Second})
	for name, more := range map[string]int{"few objects": 0, "many objects": 200} {
		repo, err := e.repos.Open(t.Context(), "shop")
		if err != nil {
			t.Fatal(err)
		}
		var in, out bytes.Buffer
		line := strings.Repeat("0", 40) + " " + strings.Repeat("1", 40) + " refs/heads/main\x00report-status"
		fmt.Fprintf(&in, "%04x%s0000", len(line)+4, line)
		in.Write(bombPack(t, more))
		err = repo.Receive(t.Context(), &in, &out, func(context.Context, *Push, io.Writer) error {
			t.Errorf("%s: the push is accepted", name)
			return nil
		})
		if !errs.Is(err, errs.ResourceExhausted) || !strings.Contains(err.Error(), "1s of CPU time") {
			t.Errorf("%s: %v, the client gets %q", name, err, out.String())
		}
		if _, err := e.repos.Open(t.Context(), "shop"); err != nil { // as the next push does
			t.Fatal(err)
		}
		if left := e.leftovers(); len(left) > 0 {
			t.Errorf("%s: the push left %v", name, left)
		}
	}
}

// bombPack returns a pack of small blobs and one of 16 GiB of zeros.
func bombPack(t *testing.T, more int) []byte {
	t.Helper()
	const part, parts = 16 << 20, 1024
	var b, z bytes.Buffer
	b.WriteString("PACK")
	_ = binary.Write(&b, binary.BigEndian, [2]uint32{2, uint32(more + 1)}) // it never fails
	for i := range more {
		text := fmt.Sprintf("%d", i)
		b.WriteByte(3<<4 | byte(len(text)))
		w := zlib.NewWriter(&b)
		_, _ = io.WriteString(w, text)
		_ = w.Close()
	}
	size := uint64(part * parts)
	b.WriteByte(0x80 | 3<<4 | byte(size&15))
	b.Write(binary.AppendUvarint(nil, size>>4))
	w := zlib.NewWriter(&z)
	_, _ = w.Write(make([]byte, part))
	_ = w.Flush()
	head := z.Len()
	_, _ = w.Write(make([]byte, part))
	_ = w.Flush() // the same bytes again go on with more zeros
	b.Write(z.Bytes()[:head])
	for range parts - 1 {
		b.Write(z.Bytes()[head:])
	}
	sum := sha1.Sum(b.Bytes())
	return append(b.Bytes(), sum[:]...)
}

// TestLongSubject: the server keeps the beginning of the first line of a message.
func TestLongSubject(t *testing.T) {
	e := newEnv(t, Config{})
	commit := e.with(strings.Repeat("x", 4<<20), "commit-tree", "-F", "-", e.Git("rev-parse", "HEAD^{tree}"))
	e.accept = func(ctx context.Context, p *Push, _ io.Writer) error {
		tree, err := p.Checkout(ctx, p.Updates[0].Commit, Limits{Files: 10, Bytes: 1 << 20})
		if err != nil {
			return err
		}
		if n := len(tree.Subject); n == 0 || n > maxOutput {
			t.Errorf("the subject has %d bytes", n)
		}
		return tree.Remove()
	}
	e.push(false, "[new branch]", commit+":refs/heads/main")
}

// TestAttributesMakeNoBytes: attributes of the commit do not make many times the bytes that were counted.
func TestAttributesMakeNoBytes(t *testing.T) {
	e := newEnv(t, Config{})
	const content = "$Id$\n$Id$\n"
	blob := e.with(content, "hash-object", "-w", "--stdin")
	attributes := e.with("* ident working-tree-encoding=UTF-32\n", "hash-object", "-w", "--stdin")
	tree := e.mktree(fmt.Sprintf("100644 blob %s\t.gitattributes\n100644 blob %s\tfile\n", attributes, blob))
	commit := e.Git("commit-tree", "-m", "attributes", tree)
	e.accept = func(ctx context.Context, p *Push, _ io.Writer) error {
		tree, err := p.Checkout(ctx, p.Updates[0].Commit, Limits{Files: 10, Bytes: 1 << 20})
		if err != nil {
			return err
		}
		if b, err := os.ReadFile(filepath.Join(tree.Dir, "file")); err != nil || string(b) != content {
			t.Errorf("the file has %q, %v", b, err)
		}
		return tree.Remove()
	}
	e.push(false, "[new branch]", commit+":refs/heads/main")
}

// TestManySubmodules: the server keeps the paths of a few.
func TestManySubmodules(t *testing.T) {
	m := &measured{limits: Limits{Files: 10 * maxSubmodules}, tree: &Tree{}}
	for i := range 2 * maxSubmodules {
		if _, err := fmt.Fprintf(m, "160000 commit %040d       -\tlib/%d\x00", i, i); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(m.tree.Submodules); n != maxSubmodules || m.files != 2*maxSubmodules {
		t.Errorf("%d submodules of %d are kept", n, m.files)
	}
}
