package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/rpc"
)

// Key is an API key, without what its user sends.
type Key struct {
	Name      string     `json:"name" doc:"Name." example:"ci"`
	Roles     []string   `json:"roles" doc:"Roles in the project: agent, viewer, deployer, admin."`
	CreatedBy string     `json:"created_by,omitempty" doc:"Identity that made it."`
	CreatedAt time.Time  `json:"created_at" doc:"Time of its creation."`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"Time of its expiry; absent: it does not expire."`
	LastUsed  *time.Time `json:"last_used,omitempty" doc:"Time of its last use, up to a minute late; absent: it was never used."`
	Limits    KeyLimits  `json:"limits" doc:"What its callers may use."`
}

// KeyLimits are the bounds of a key.
type KeyLimits struct {
	Rate          *int64 `json:"rate,omitempty" minimum:"1" maximum:"1000000" doc:"Most requests per second; absent: those of the server."`
	MaxSandboxes  *int64 `json:"max_sandboxes,omitempty" minimum:"0" doc:"Most sandboxes at the same time, those of its executions included; absent: unlimited."`
	MaxExecutions *int64 `json:"max_executions,omitempty" minimum:"0" doc:"Most executions at the same time; absent: unlimited."`
}

// KeyUse is what is used with a key at the moment.
type KeyUse struct {
	Sandboxes  int64 `json:"sandboxes" doc:"Sandboxes that run or start."`
	Executions int64 `json:"executions" doc:"Executions that wait or run."`
}

// KeyDetail is a key and what is used with it.
type KeyDetail struct {
	Key
	Used KeyUse `json:"used" doc:"What is used with it at the moment."`
}

// NewKey is a key that was made now.
type NewKey struct {
	Key
	Secret string `json:"key" doc:"What its user sends. It is shown this once."`
}

func keyOf(k *core.APIKey) Key {
	out := Key{Name: k.Name, Roles: []string{}, CreatedBy: k.Spec.CreatedBy, CreatedAt: k.CreatedAt, ExpiresAt: k.Spec.ExpiresAt, LastUsed: k.Status.LastUsed}
	out.Limits = KeyLimits{k.Spec.Rate, k.Spec.MaxSandboxes, k.Spec.MaxExecutions}
	for _, r := range k.Spec.Roles {
		role, _, _ := rpc.SplitRole(r) // the project is that of the caller
		out.Roles = append(out.Roles, role)
	}
	return out
}

// KeyNameInput names a key.
type KeyNameInput struct {
	Name string `path:"name" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name of the key." example:"ci"`
}

func registerKeys(a huma.API) {
	const tag = "keys"
	register(a, op(http.MethodPost, "/keys", "create-key", tag, "Make an API key of the project, which is shown this once", status(http.StatusCreated)), createKey)
	register(a, op(http.MethodGet, "/keys", "list-keys", tag, "List the API keys of the project"), listKeys)
	register(a, op(http.MethodGet, "/keys/{name}", "get-key", tag, "Get an API key, and what is used with it"), getKey)
	register(a, op(http.MethodDelete, "/keys/{name}", "delete-key", tag, "Delete an API key, which is refused from then on", status(http.StatusNoContent)), deleteKey)
}

type createKeyInput struct {
	Body struct {
		Name       string   `json:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name." example:"ci"`
		Roles      []string `json:"roles,omitempty" maxItems:"16" enum:"agent,viewer,deployer,admin" doc:"Roles; absent: agent."`
		TTLSeconds *int64   `json:"ttl_seconds,omitempty" minimum:"60" maximum:"315360000" doc:"Validity; absent: until it is deleted."`
		KeyLimits
	}
}

type createdKey struct {
	CacheControl string `header:"Cache-Control"`
	Body         NewKey
}

func createKey(ctx context.Context, in *createKeyInput) (*createdKey, error) {
	c := callerFrom(ctx)
	resp, err := core.NewKeysClient(c.Client).Create(ctx, &core.CreateKeyRequest{
		Project: c.Project(), Name: in.Body.Name, Roles: in.Body.Roles, TTL: seconds(in.Body.TTLSeconds),
		Rate: in.Body.Rate, MaxSandboxes: in.Body.MaxSandboxes, MaxExecutions: in.Body.MaxExecutions,
	})
	if err != nil {
		return nil, err
	}
	k, err := entity.Decode[core.APIKey](&resp.Key)
	if err != nil {
		return nil, err
	}
	return &createdKey{"no-store", NewKey{keyOf(k), resp.Secret}}, nil
}

// KeyPage is a page of a list.
type KeyPage struct {
	Keys       []Key  `json:"keys" doc:"Keys, in the order of their ids."`
	NextCursor string `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

func listKeys(ctx context.Context, in *ListInput) (*body[KeyPage], error) {
	all, cursor, err := listPage[core.APIKey](ctx, core.KindAPIKey, in)
	if err != nil {
		return nil, err
	}
	out := KeyPage{Keys: []Key{}, NextCursor: cursor}
	for _, k := range all {
		out.Keys = append(out.Keys, keyOf(k))
	}
	return &body[KeyPage]{out}, nil
}

func getKey(ctx context.Context, in *KeyNameInput) (*body[KeyDetail], error) {
	c := callerFrom(ctx)
	resp, err := core.NewKeysClient(c.Client).Show(ctx, &core.KeyRequest{Project: c.Project(), Name: in.Name})
	if err != nil {
		return nil, err
	}
	k, err := entity.Decode[core.APIKey](&resp.Key)
	if err != nil {
		return nil, err
	}
	out := KeyDetail{Key: keyOf(k)}
	for _, u := range resp.Resources {
		switch u.Resource {
		case core.QuotaResourceSandboxes:
			out.Used.Sandboxes = u.Used
		case core.QuotaResourceExecutions:
			out.Used.Executions = u.Used
		}
	}
	return &body[KeyDetail]{out}, nil
}

func deleteKey(ctx context.Context, in *KeyNameInput) (*struct{}, error) {
	c := callerFrom(ctx)
	return nil, core.NewKeysClient(c.Client).Delete(ctx, &core.KeyRequest{Project: c.Project(), Name: in.Name})
}
