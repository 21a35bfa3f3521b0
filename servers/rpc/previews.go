package rpcserver

import (
	"context"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/previews"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
)

// previewHandler serves sandbox.Previews.
type previewHandler struct{ previews *previews.Service }

// Previews serves s to its callers.
func Previews(s *previews.Service) sandbox.Previews { return &previewHandler{s} }

func (h *previewHandler) Create(ctx context.Context, req *sandbox.CreatePreviewRequest) (*sandbox.PreviewResponse, error) {
	p, err := h.previews.Create(ctx, previews.Request{
		Sandbox: req.Sandbox, Port: int(opt.Value(req.Port)), Public: opt.Value(req.Public), TTL: opt.Value(req.TTL),
	})
	if err != nil {
		return nil, err
	}
	rec, err := record(p)
	return &sandbox.PreviewResponse{Preview: rec, URL: h.previews.Address(p), Token: h.previews.Token(p)}, err
}

func (h *previewHandler) Sign(ctx context.Context, req *sandbox.SignPreviewRequest) (*sandbox.SignPreviewResponse, error) {
	url, end, err := h.previews.Sign(ctx, req.Preview, opt.Value(req.TTL))
	if err != nil {
		return nil, err
	}
	return &sandbox.SignPreviewResponse{URL: url, ExpiresAt: end}, nil
}

func (h *previewHandler) Delete(ctx context.Context, req *sandbox.PreviewRequest) error {
	return h.previews.Delete(ctx, req.Preview)
}

// Dial connects the streams of the call with a port, after a byte 0.
func (h *previewHandler) Dial(ctx context.Context, req *sandbox.DialPreviewRequest, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	c, err := h.previews.Dial(ctx, req.Preview, int(req.Port))
	if err != nil {
		return err
	}
	return Connected(ctx, c, st)
}

func (h *previewHandler) Wake(ctx context.Context, req *sandbox.PreviewRequest) error {
	return h.previews.Wake(ctx, req.Preview)
}
