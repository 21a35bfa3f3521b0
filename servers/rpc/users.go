package rpcserver

import (
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/domain/users"
)

// userHandler serves core.Users.
type userHandler struct{ users *users.Service }

// Users serves s to its callers.
func Users(s *users.Service) core.Users { return &userHandler{s} }

func (h *userHandler) Create(ctx context.Context, req *core.CreateUserRequest) (*core.UserResponse, error) {
	return userResponse(h.users.Create(ctx, req.Name, req.DisplayName, req.Roles, caller(ctx)))
}

func (h *userHandler) Set(ctx context.Context, req *core.SetUserRequest) (*core.UserResponse, error) {
	return userResponse(h.users.Set(ctx, req.Name, req.Roles, req.Disabled))
}

func userResponse(u *core.User, err error) (*core.UserResponse, error) {
	if err != nil {
		return nil, err
	}
	rec, err := record(u)
	return &core.UserResponse{User: rec}, err
}
