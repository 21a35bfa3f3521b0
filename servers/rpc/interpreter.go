package rpcserver

import (
	"context"

	"miren.dev/runtime/api/interpreter"
	domain "miren.dev/runtime/domain/interpreter"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
)

// interpreterHandler serves interpreter.Interpreter.
type interpreterHandler struct{ interpreter *domain.Service }

// Run executes code and sends what it does.
func (h *interpreterHandler) Run(ctx context.Context, req *interpreter.RunRequest, st rpc.ServerStream[rpc.None, interpreter.RunEvent]) error {
	return h.interpreter.Run(ctx, domain.RunRequest{
		Sandbox: req.Sandbox, Code: req.Code, Language: req.Language, Context: req.Context, Env: req.Env, Timeout: opt.Value(req.Timeout),
	}, st.Send)
}

// Create makes a context.
func (h *interpreterHandler) Create(ctx context.Context, req *interpreter.CreateContextRequest) (*interpreter.ContextResponse, error) {
	return contextResponse(h.interpreter.Create(ctx, domain.CreateRequest{Sandbox: req.Sandbox, Language: req.Language, Workdir: req.Workdir, Env: req.Env}))
}

func contextResponse(c *interpreter.CodeContext, err error) (*interpreter.ContextResponse, error) {
	if err != nil {
		return nil, err
	}
	return &interpreter.ContextResponse{Context: *c}, nil
}

// List lists the contexts of a sandbox.
func (h *interpreterHandler) List(ctx context.Context, req *interpreter.ContextsRequest) (*interpreter.ContextsResponse, error) {
	list, err := h.interpreter.List(ctx, req.Sandbox)
	return &interpreter.ContextsResponse{Contexts: list}, err
}

// Interrupt interrupts what a context executes.
func (h *interpreterHandler) Interrupt(ctx context.Context, req *interpreter.ContextRequest) (*interpreter.ContextResponse, error) {
	return contextResponse(h.interpreter.Interrupt(ctx, req.Sandbox, req.Context))
}

// Restart replaces the process of a context.
func (h *interpreterHandler) Restart(ctx context.Context, req *interpreter.ContextRequest) (*interpreter.ContextResponse, error) {
	return contextResponse(h.interpreter.Restart(ctx, req.Sandbox, req.Context))
}

// Delete deletes a context.
func (h *interpreterHandler) Delete(ctx context.Context, req *interpreter.ContextRequest) error {
	return h.interpreter.Delete(ctx, req.Sandbox, req.Context)
}
