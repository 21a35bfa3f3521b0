package rest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/session"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
)

// runIdempotent creates a sandbox, or returns the one that an earlier request
// with the key created. The key is kept with the sandbox: its name is that of
// the request or made of the key, so of two requests one finds the name taken,
// or, if the first one's sandbox was the last that there was room for, no room.
func runIdempotent(ctx context.Context, key string, request any, req *sandbox.RunRequest) (*sandbox.Sandbox, error) {
	if key == "" {
		return sandboxOf(sandboxes(ctx).Run(ctx, req))
	}
	text, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	keyHash, requestHash := digest([]byte(key)), digest(text)
	if req.Name == "" {
		req.Name = "once-" + keyHash
	}
	req.Labels = maps.Clone(req.Labels)
	if req.Labels == nil {
		req.Labels = map[string]string{}
	}
	req.Labels[session.LabelKey], req.Labels[session.LabelRequest] = keyHash, requestHash
	sb, err := sandboxOf(sandboxes(ctx).Run(ctx, req))
	if !errs.Is(err, errs.AlreadyExists) && !errs.Is(err, errs.ResourceExhausted) {
		return sb, err
	}
	page, lerr := remote.New(callerFrom(ctx).Client).List(ctx, entity.Query{Kind: sandbox.KindSandbox, Name: req.Name, Labels: map[string]string{session.LabelKey: keyHash}})
	if lerr != nil {
		return nil, lerr
	}
	if len(page.Records) == 0 {
		return nil, err
	}
	if sb, err = entity.Decode[sandbox.Sandbox](&page.Records[0]); err != nil {
		return nil, err
	}
	if sb.Labels[session.LabelRequest] != requestHash {
		return nil, errs.New(errs.Conflict, "another request used this Idempotency-Key").WithHint("use a key for one request only")
	}
	return sb, nil
}

// digest returns the first half of the SHA-256 of b.
func digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16])
}
