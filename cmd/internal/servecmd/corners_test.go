package servecmd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// dial is a connection to the server without a client's manners.
func (s *instance) dial() net.Conn {
	s.t.Helper()
	address := strings.TrimSuffix(strings.TrimPrefix(s.started.URL, "http://"), "/v1")
	connection, err := net.Dial("tcp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { connection.Close() })
	return connection
}

// completion is a request for a completion as it goes over the wire.
func completion(body string) string {
	return fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\n\r\n%s", len(body), body)
}

// Requests that a client sends before it has read the answers to earlier ones are answered whole, in their order: that
// more comes on the connection does not mean that the client has left.
func TestPipelining(t *testing.T) {
	s := launch(t)
	r := alone(t)
	connection := s.dial()
	var sent strings.Builder
	for i, prompt := range prompts[:4] {
		sent.WriteString(completion(fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"temperature":0}`, prompt, 8+8*i)))
	}
	sent.WriteString("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if _, err := connection.Write([]byte(sent.String())); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(connection)
	next := func() string {
		t.Helper()
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("status %d, %s, %v", response.StatusCode, text, err)
		}
		return string(text)
	}
	for i, prompt := range prompts[:4] {
		want := r.text(r.tokens(t, prompt, greedy, 8+8*i))
		got := textOf(t, next())
		if got != want {
			t.Errorf("%q: got %q, want %q", prompt, got, want)
		}
	}
	if text := next(); !strings.Contains(text, `"object":"list"`) {
		t.Errorf("the last answer is %s", text)
	}
}

// textOf is the text of a completion that came whole.
func textOf(t *testing.T, document string) string {
	t.Helper()
	answer, err := parsed([]string{document})
	if err != nil {
		t.Fatal(err)
	}
	return answer.text
}

// Clients that keep their connections open between two requests shut out no others: as many as may connect have done
// so, and another one is answered at once.
func TestIdleConnectionsGiveWay(t *testing.T) {
	s := launch(t, "--max-connections", "2")
	for client := range 5 {
		connection := s.dial() // open until the test ends
		if err := connection.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := connection.Write([]byte("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatalf("client %d: %v", client, err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("client %d: status %d, %v", client, response.StatusCode, err)
		}
	}
}

// A connection that is closed behind an answer, because others may need its place, says so in that answer: otherwise its
// client may send the next request into a connection that is being closed.
func TestCrowdedConnectionsSayThatTheyClose(t *testing.T) {
	s := launch(t, "--max-connections", "2")
	const whole, stream = `{"prompt":"Woe","max_tokens":2}`, `{"prompt":"Woe","max_tokens":2,"stream":true}`
	ask := func(connection net.Conn, body string) (closes bool) {
		t.Helper()
		if _, err := connection.Write([]byte(completion(body))); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("status %d, %v", response.StatusCode, err)
		}
		return response.Close
	}
	alone := s.dial()
	for range 3 {
		if ask(alone, whole) || ask(alone, stream) {
			t.Fatal("a connection is closed while another one may be opened")
		}
	}
	busy := s.dial() // its body never comes
	head := strings.Replace(completion(`{}`), "\r\n\r\n{}", "\r\nExpect: 100-continue\r\n\r\n", 1)
	if _, err := busy.Write([]byte(head)); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(busy).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("got %q, %v", line, err)
	}
	for _, body := range []string{whole, stream} {
		if !ask(s.dial(), body) {
			t.Errorf("%s: the last connection that may be open is closed behind its answer, which does not say so", body)
		}
	}
}

// What is no HTTP, or too much of it, ends its connection with a status, and the server goes on.
func TestBadHeads(t *testing.T) {
	s := launch(t)
	for _, test := range []struct{ name, head, want string }{
		{"long header", "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 80<<10) + "\r\n\r\n", "431"},
		{"many headers", "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("A: b\r\n", 20000) + "\r\n", "431"},
		{"no host", "GET /v1/models HTTP/1.1\r\n\r\n", "400"},
		{"not HTTP", "\x16\x03\x01\x02\x00\r\n\r\n", "400"},
		{"HTTP/2 without asking", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "403"},
		{"negative length", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", "400"},
		{"two lengths", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", "400"},
	} {
		connection := s.dial()
		go func() { _, _ = connection.Write([]byte(test.head)) }() // the server may not read all of it
		line, err := bufio.NewReader(connection).ReadString('\n')
		if !strings.HasPrefix(line, "HTTP/1.1 "+test.want+" ") {
			t.Errorf("%s: %q (%v), want status %s", test.name, line, err, test.want)
		}
		connection.Close()
	}
	if got, err := s.complete(t.Context(), map[string]any{"prompt": "Woe", "max_tokens": 3}); err != nil || got.tokens == 0 {
		t.Errorf("afterwards: %+v, %v", got, err)
	}
}

// Values at the edges of what a request may ask for.
func TestEdges(t *testing.T) {
	s := launch(t)
	long := strings.Repeat("Woe ", contextLength)
	for _, test := range []struct {
		path, body string
		status     int
		want       string // in the answer
	}{
		{"/completions", `{"prompt":"Woe","max_tokens":2147483647,"temperature":0}`, 200, `"completion_tokens":`},
		{"/completions", `{"prompt":"Woe","max_tokens":0}`, 400, `"param":"max_tokens"`},
		{"/completions", `{"prompt":"","max_tokens":2}`, 400, `"param":"prompt"`}, // no token begins texts of this model
		{"/completions", `{"prompt":"Woe","max_tokens":2,"stop":[]}`, 200, `"finish_reason"`},
		{"/completions", `{"prompt":"Woe","n":2}`, 400, `"param":"n"`},
		{"/completions", `{"prompt":"` + long + `"}`, 400, `"code":"context_length_exceeded"`},
		{"/completions", "{\"prompt\":\"\xff\xfe\"}", 400, "UTF-8"},
		{"/completions", `{"prompt":"Woe","model":"gpt-4"}`, 404, `"code":"model_not_found"`},
		{"/chat/completions", `{"messages":[]}`, 400, `"param":"messages"`},
		{"/chat/completions", `{"messages":[{"role":"developer","content":"Woe"}],"max_tokens":2}`, 200, `"role":"assistant"`},
		{"/chat/completions", `{"messages":[{"role":"user","content":"` + long + `"}]}`, 400, `"param":"messages"`},
		{"/chat/completions", `{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]}`, 400, `"param":"tools"`},
		{"/chat/completions", `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"}}`, 400,
			`"param":"response_format"`},
		{"/embeddings", `{"input":"a"}`, 404, `"code":"not_found"`},
	} {
		response, err := s.client.Post(s.started.URL+test.path, "application/json", strings.NewReader(test.body))
		if err != nil {
			t.Errorf("%.60s: %v", test.body, err)
			continue
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != test.status || !strings.Contains(string(text), test.want) {
			t.Errorf("%.60s: status %d, %.200s (%v), want %d with %s", test.body, response.StatusCode, text, err, test.status,
				test.want)
		}
		if isError := strings.HasPrefix(string(text), `{"error":{"message":`); isError != (test.status != http.StatusOK) {
			t.Errorf("%.60s: the answer with status %d is %.200s", test.body, response.StatusCode, text)
		}
	}
}

// A recording on a full disk ends with one warning, and requests go on being answered.
func TestRecordingOnFullDisk(t *testing.T) {
	const full = "/dev/full"
	if _, err := os.Stat(full); runtime.GOOS != "linux" || err != nil {
		t.Skip("no " + full)
	}
	s := launch(t, "--record", full)
	for range 3 {
		if got, err := s.complete(t.Context(), map[string]any{"prompt": "Woe", "max_tokens": 3}); err != nil || got.tokens == 0 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	s.end()
	if count := strings.Count(s.errs.String(), "no more requests are recorded"); count != 1 {
		t.Errorf("told %d times, want once: %s", count, s.errs)
	}
}
