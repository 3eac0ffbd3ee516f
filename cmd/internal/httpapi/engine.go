package httpapi

import (
	"context"

	"github.com/hetc/hetc/runtime/serving"
)

// Engine generates tokens for many requests at a time, as serving.Server does.
type Engine interface {
	// Submit begins to answer a request. serving.ErrFull and serving.ErrDraining refuse it for now; other errors of
	// the classes ClassInput and ClassUsage are of the request.
	Submit(request serving.Request) (Answer, error)
	Metrics() serving.Metrics
}

// Answer is a request under way: serving.Answer.
type Answer interface {
	Next(ctx context.Context) (token serving.Token, there bool, err error)
	Ready() bool
	Cancel()
	Enough()
	End() (serving.Reason, error)
	Usage() serving.Usage
}

// Shared returns the engine of a machine that requests share.
func Shared(server *serving.Server) Engine { return shared{server} }

type shared struct{ *serving.Server }

// Submit implements Engine.
func (s shared) Submit(request serving.Request) (Answer, error) {
	answer, err := s.Server.Submit(request)
	if err != nil {
		return nil, err // no answer, rather than one that is nil
	}
	return answer, nil
}
