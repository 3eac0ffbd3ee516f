package httpapi

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are in memory, so that their deadlines keep the test's clock.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if connection, ok := <-p; ok {
		return connection, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A connection without a request that is answered is held for seconds: one that is silent, one whose head stops, and
// one whose request nobody reads the body of. A client without a key gets its refusal although its body never comes.
func TestSilentConnections(t *testing.T) {
	for _, test := range []struct {
		name, sent, want string
		most             time.Duration
	}{
		{"silent", "", "", headTimeout},
		{"head stops", "GET /v1/models HTTP/1.1\r\nHost: loc", "", headTimeout},
		{"no key, no body", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", "HTTP/1.1 401 ", dropTimeout},
		{"no key, body stops", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", "HTTP/1.1 401 ", dropTimeout},
		{"no such method", "POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", "HTTP/1.1 405 ", dropTimeout},
		{"a body that is read", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\n" +
			"Content-Length: 9\r\n\r\n{", "HTTP/1.1 408 ", readTimeout},
	} {
		t.Run(test.name, func(t *testing.T) {
			demoTokenizer()
			synctest.Test(t, func(t *testing.T) {
				api := New(&fakeEngine{}, Options{Model: "demo", Tokenizer: demoTokenizer(), Context: 64, MaxBody: 1 << 16,
					Timeout: time.Minute, Keys: []string{"k"}, Logf: t.Logf})
				server, accepted := api.HTTPServer(), make(pipes)
				go func() { _ = server.Serve(accepted) }()
				client, remote := net.Pipe()
				accepted <- remote
				began := time.Now()
				if _, err := io.WriteString(client, test.sent); err != nil {
					t.Fatal(err)
				}
				answer, err := io.ReadAll(bufio.NewReader(client))
				if err != nil || !strings.HasPrefix(string(answer), test.want) || test.want == "" && len(answer) > 0 {
					t.Errorf("got %.40q (%v), want %q", answer, err, test.want)
				}
				if took := time.Since(began); took > test.most+time.Second { // net/http lingers when it closes
					t.Errorf("held for %v, want %v", took, test.most)
				}
				close(accepted)
				if err := server.Shutdown(context.Background()); err != nil && err != http.ErrServerClosed {
					t.Error(err)
				}
			})
		})
	}
}
