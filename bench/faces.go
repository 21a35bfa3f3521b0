package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/server"
)

// Goals of the faces: what they may add to the same command by RPC, p50, in milliseconds.
const (
	restGoal = 1
	e2bGoal  = 2
	mcpGoal  = 3
	sshGoal  = 15
)

// shellLine is the command of faces whose commands are lines for a shell, and
// inShell what they execute.
const shellLine = "exec /bin/true"

var inShell = []string{"/bin/sh", "-c", shellLine}

// face executes one command in the sandbox in its own way.
type face struct {
	name string
	goal float64
	exec func(ctx context.Context) error
	same []string // the command by RPC
}

// benchFaces executes one command by each face and by RPC, in turns. Each face
// keeps its connection, as clients do. Then it compares streams.
func benchFaces(ctx context.Context, b *bench) error {
	i, err := b.installation(ctx)
	if err != nil {
		return err
	}
	c := sandbox.NewSandboxesClient(i.client)
	sb, err := claimed(ctx, c, &sandbox.RunRequest{Template: claimTemplate})
	if err != nil {
		return err
	}
	key, err := core.NewKeysClient(i.client).Create(ctx, &core.CreateKeyRequest{Name: "bench"})
	if err != nil {
		return err
	}
	web := &webFace{base: "http://" + i.api, key: key.Secret, sandbox: string(sb.ID)}
	agent, err := web.mcp(ctx)
	if err != nil {
		return err
	}
	defer agent.Close()
	if err := web.createE2B(ctx); err != nil {
		return err
	}
	login, err := sshLogin(ctx, i, sb.GetID())
	if err != nil {
		return err
	}
	defer login.Close()
	faces := []face{
		{"REST", restGoal, web.rest, trueCommand},
		{"E2B", e2bGoal, web.e2b, trueCommand},
		{"MCP", mcpGoal, func(ctx context.Context) error { return callMCP(ctx, agent, string(sb.ID)) }, inShell},
		{"SSH, a session of a connection", sshGoal, func(context.Context) error { return runSSH(login) }, inShell},
	}
	for _, f := range faces {
		if err := b.overhead(ctx, f, func(ctx context.Context) error { return commandRPC(ctx, c, sb.GetID(), f.same) }); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if err := benchStreams(ctx, b, i, c, sb, web); err != nil {
		return err
	}
	return i.remove(ctx, c, sb)
}

// commandRPC executes a command and waits for the end of the call, as faces must:
// then its audit record is durable.
func commandRPC(ctx context.Context, c sandbox.SandboxesClient, sid id.Sandbox, command []string) error {
	st, err := c.Exec(ctx, &sandbox.ExecRequest{Sandbox: sid, Command: command})
	if err != nil {
		return err
	}
	defer st.Close()
	code := int64(-1)
	for {
		o, err := st.Recv()
		if errors.Is(err, io.EOF) && code == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("exit code %d: %w", code, err)
		}
		if o.ExitCode != nil {
			code = *o.ExitCode
		}
	}
}

// overhead reports by how much a face exceeds RPC, in turns of 50 commands.
func (b *bench) overhead(ctx context.Context, f face, rpc func(context.Context) error) error {
	var face, base latencies
	for k := range b.rounds(10) + 1 {
		for _, side := range []struct {
			exec func(context.Context) error
			took *latencies
		}{{f.exec, &face}, {rpc, &base}} {
			took, err := repeat(ctx, 50, func() error { return side.exec(ctx) })
			if err != nil {
				return err
			}
			if k > 0 { // the first turn warms up
				*side.took = append(*side.took, took...)
			}
		}
	}
	b.report.figure("exec by "+f.name+", p50", "ms", face.ms(50), 0)
	b.report.figure("exec by "+f.name+", more than RPC, p50", "ms", face.ms(50)-base.ms(50), f.goal)
	return nil
}

// webFace is a client of the faces on HTTP.
type webFace struct {
	base, key, sandbox string

	e2bSandbox, e2bToken string
}

// post sends JSON and returns the answer.
func (w *webFace) post(ctx context.Context, path string, header http.Header, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, b)
	}
	return b, err
}

func (w *webFace) rest(ctx context.Context) error {
	body, err := json.Marshal(map[string]any{"command": trueCommand})
	if err != nil {
		return err
	}
	b, err := w.post(ctx, "/api/v1/sessions/"+w.sandbox+"/commands", http.Header{
		"Authorization": {"Bearer " + w.key}, "Content-Type": {"application/json"},
	}, body)
	if err != nil {
		return err
	}
	var result struct {
		ExitCode *int `json:"exit_code"`
	}
	if err := json.Unmarshal(b, &result); err != nil {
		return err
	}
	if result.ExitCode == nil || *result.ExitCode != 0 {
		return fmt.Errorf("the answer is %s", b)
	}
	return nil
}

// createE2B creates the sandbox that e2b uses: tokens are given to those who create one.
func (w *webFace) createE2B(ctx context.Context) error {
	b, err := w.post(ctx, "/sandboxes", http.Header{"X-Api-Key": {w.key}, "Content-Type": {"application/json"}},
		[]byte(`{"templateID":"`+claimTemplate+`","timeout":3600}`))
	if err != nil {
		return err
	}
	var sb struct {
		SandboxID, EnvdAccessToken string
	}
	if err := json.Unmarshal(b, &sb); err != nil {
		return err
	}
	w.e2bSandbox, w.e2bToken = sb.SandboxID, sb.EnvdAccessToken
	return nil
}

// e2b starts a process as the SDKs do, by a stream of Connect.
func (w *webFace) e2b(ctx context.Context) error {
	message, err := json.Marshal(map[string]any{"process": map[string]any{"cmd": trueCommand[0], "args": trueCommand[1:]}})
	if err != nil {
		return err
	}
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	b, err := w.post(ctx, "/process.Process/Start", http.Header{
		"Content-Type": {"application/connect+json"}, "Connect-Protocol-Version": {"1"}, "X-Access-Token": {w.e2bToken},
		"E2b-Sandbox-Id": {w.e2bSandbox}, "E2b-Sandbox-Port": {"49983"},
	}, body)
	if err != nil {
		return err
	}
	if !bytes.Contains(b, []byte(`"exited":true`)) {
		return fmt.Errorf("the answer is %q", b)
	}
	return nil
}

// mcp opens a session.
func (w *webFace) mcp(ctx context.Context) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	return client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: w.base + "/mcp", HTTPClient: &http.Client{Transport: bearer(w.key)}, DisableStandaloneSSE: true,
	}, nil)
}

// bearer is a transport that sends a key.
type bearer string

func (k bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

func callMCP(ctx context.Context, s *mcp.ClientSession, sandbox string) error {
	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "run_command", Arguments: map[string]any{"sandbox": sandbox, "command": shellLine}})
	if err == nil && r.IsError {
		text, _ := json.Marshal(r.Content)
		err = fmt.Errorf("the tool failed: %s", text)
	}
	return err
}

// sshLogin opens a connection of a client with a certificate.
func sshLogin(ctx context.Context, i *install, sid id.Sandbox) (*ssh.Client, error) {
	st, err := server.NewServerClient(i.client).Status(ctx)
	if err != nil {
		return nil, err
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, err
	}
	resp, err := server.NewSSHClient(i.client).AddKey(ctx, &server.AddSSHKeyRequest{
		Name: "bench", PublicKey: string(ssh.MarshalAuthorizedKey(signer.PublicKey())), Roles: []string{"deployer@default"},
	})
	if err != nil {
		return nil, err
	}
	if resp == nil || st.SSHAddress == "" {
		return nil, errors.New("the server has no SSH")
	}
	return ssh.Dial("tcp", st.SSHAddress, &ssh.ClientConfig{
		User: string(sid), Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, Timeout: 10 * time.Second,
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), // the server is this program's child
	})
}

func runSSH(c *ssh.Client) error {
	s, err := c.NewSession()
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Run(shellLine)
}
