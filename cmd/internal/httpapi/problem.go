package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// problem is an error as the API tells it.
type problem struct {
	status  int
	kind    string
	param   string // the field of the request, "" for none
	code    string
	message string
}

// Kinds of problems, as OpenAI calls them.
const (
	kindRequest = "invalid_request_error"
	kindRate    = "rate_limit_error"
	kindServer  = "server_error"
)

// Error returns the text of the message.
func (p *problem) Error() string { return p.message }

// MarshalJSON writes the form of OpenAI, in which what is absent is null.
func (p *problem) MarshalJSON() ([]byte, error) {
	absent := func(text string) *string {
		if text == "" {
			return nil
		}
		return &text
	}
	type body struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	return json.Marshal(map[string]body{"error": {p.message, p.kind, absent(p.param), absent(p.code)}})
}

// refuse returns a problem of a field of the request; param is "" for the request as a whole.
func refuse(param, format string, args ...any) *problem {
	return &problem{status: http.StatusBadRequest, kind: kindRequest, param: param,
		message: fmt.Sprintf(format, args...)}
}

// as sets status and code, and returns the problem.
func (p *problem) as(status int, code string) *problem {
	p.status, p.code = status, code
	return p
}

// unavailable returns a problem of the server, for a while.
func unavailable(code, format string, args ...any) *problem {
	return &problem{status: http.StatusServiceUnavailable, kind: kindServer, code: code,
		message: fmt.Sprintf(format, args...)}
}

// told returns an error with its hints as one sentence.
func told(err error) string {
	return strings.Join(append([]string{err.Error()}, diag.HintsOf(err)...), "; ")
}

// brief shortens what a client wrote, for messages that repeat it.
func brief(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
