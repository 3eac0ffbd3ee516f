// Package httpapi knows the HTTP API of OpenAI's clients: which fields of a request count, what text and events an
// answer consists of, and the form of errors. It turns JSON into tokens and tokens into JSON; an Engine generates the
// tokens.
package httpapi

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/runtime/tokenizer"
)

// Options say what is served, and to whom.
type Options struct {
	Model       string // the name that requests may give
	Fingerprint string // of the bundle, in every answer
	Tokenizer   tokenizer.Tokenizer
	Context     int // positions of a sequence
	Vocabulary  int // token ids
	MaxTokens   int // most tokens of an answer
	MaxBody     int64
	Timeout     time.Duration // of a request, its time in the queue included
	Keys        []string      // one of which every request carries; none: all are answered
	// LocalOnly refuses requests that name this machine by anything but an address or localhost. Otherwise a web page
	// whose domain name points here could use the server through its visitor's browser.
	LocalOnly bool
	// Crowded reports whether as many connections are open as may be. nil: they never are.
	Crowded func() bool
	Logf    func(format string, args ...any)
}

// Time limits of what a client does with a connection. Options.Timeout limits the rest.
const (
	headTimeout  = 5 * time.Second  // to send a request's head, and for a TLS handshake
	readTimeout  = 30 * time.Second // to send a body
	dropTimeout  = 2 * time.Second  // to send a body that is not read, of a request that is refused by its head
	writeTimeout = 30 * time.Second // to take what is written
	idleTimeout  = 2 * time.Minute  // between two requests
)

// API answers requests. It is an http.Handler.
type API struct {
	Options
	engine   Engine
	routes   []route
	metrics  *metrics
	keys     [][sha256.Size]byte
	began    time.Time
	special  map[string]int32 // tokens that have no text in answers, by their texts
	draining atomic.Bool
	// Each has room for the bodies that may be read at a time: all of them, and those beyond longBody.
	reading, readingLong chan struct{}

	mu     sync.Mutex
	random *rand.Rand // of ids and of seeds that no client gave; nothing secret
}

// New returns an API of an engine.
func New(engine Engine, o Options) *API {
	a := &API{Options: o, engine: engine, began: time.Now(),
		reading: make(chan struct{}, readers), readingLong: make(chan struct{}, 1)}
	a.random = rand.New(rand.NewPCG(uint64(a.began.UnixNano()), 0))
	a.metrics, a.special = newMetrics(engine), specialTexts(o.Tokenizer)
	for _, key := range o.Keys {
		a.keys = append(a.keys, sha256.Sum256([]byte(key)))
	}
	a.routes = a.allRoutes()
	return a
}

// route is a method and path that is answered. A path that ends with wildModel has the name of a model there.
type route struct {
	method, path string
	handle       http.HandlerFunc
}

// matches reports whether a path is the route's, to the letter. http.ServeMux would redirect paths that are not clean,
// and a client that follows no redirects would get an answer that is no JSON.
func (r *route) matches(path string) bool {
	base, wild := strings.CutSuffix(r.path, wildModel)
	if wild {
		return strings.HasPrefix(path, base)
	}
	return path == r.path
}

// serves reports whether a method is the route's. HEAD asks for what GET answers, without the body.
func (r *route) serves(method string) bool {
	return method == r.method || method == http.MethodHead && r.method == http.MethodGet
}

// allRoutes returns all of them.
func (a *API) allRoutes() []route {
	generate := func(e *endpoint) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { a.generate(w, r, e) }
	}
	return []route{
		{http.MethodPost, "/v1/chat/completions", generate(&chat)},
		{http.MethodPost, "/v1/completions", generate(&completion)},
		{http.MethodGet, "/v1/models", a.listModels},
		{http.MethodGet, pathModels + wildModel, a.oneModel},
		{http.MethodGet, pathHealth, a.health},
		{http.MethodGet, "/metrics", a.metrics.handler.ServeHTTP},
	}
}

const (
	pathHealth = "/healthz"
	pathModels = "/v1/models/"
	wildModel  = "NAME"
)

// HTTPServer returns a server that is not listening yet. It speaks HTTP/1.1 alone, where a connection is at most one
// request: a limit on connections then bounds what requests hold.
func (a *API) HTTPServer() *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler: a, Protocols: &protocols, ReadHeaderTimeout: headTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10, ErrorLog: log.New(logWriter(a.Logf), "", 0),
	}
}

// logWriter passes lines of net/http on.
type logWriter func(format string, args ...any)

// Write passes a line on.
func (l logWriter) Write(line []byte) (int, error) {
	l("%s", bytes.TrimSpace(line))
	return len(line), nil
}

// Drain refuses requests from now on. Those under way go on.
func (a *API) Drain() { a.draining.Store(true) }

// recorder remembers the status of a response.
type recorder struct {
	http.ResponseWriter
	crowded func() bool // Options.Crowded
	status  int         // 0: nothing is written yet
}

// begin notes the status. Where the connection is going to be closed for others once it is idle, the response says so:
// otherwise the client might send its next request into a connection that is being closed.
func (w *recorder) begin(status int) {
	w.status = status
	if w.crowded != nil && w.crowded() {
		w.Header().Set("Connection", "close")
	}
}

// WriteHeader passes the status on.
func (w *recorder) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write passes a part of the body on.
func (w *recorder) Write(data []byte) (int, error) {
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
	return w.ResponseWriter.Write(data)
}

// FlushError sends what is buffered, and the head where that is not out yet. It is for http.ResponseController.
func (w *recorder) FlushError() error {
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// ServeHTTP answers a request. A panic is logged and ends this request alone.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	recorded := &recorder{ResponseWriter: w, crowded: a.Crowded}
	defer func() {
		panicked := recover()
		cause, _ := panicked.(error)
		if panicked != nil && !errors.Is(cause, http.ErrAbortHandler) {
			a.Logf("a defect: %v\n%s", panicked, debug.Stack())
			if recorded.status == 0 {
				a.fail(recorded, &problem{status: http.StatusInternalServerError, kind: kindServer,
					message: "a defect of the server; its log says more"})
				panicked = nil
			}
		}
		a.metrics.answered(r.Pattern, recorded.status, time.Since(began))
		if panicked != nil {
			panic(http.ErrAbortHandler) // the response is incomplete: the client has to see that
		}
	}()
	// If the handler does not read the body, net/http does, before it answers. A client without a key must not hold its
	// connection by announcing a body that never comes.
	_ = http.NewResponseController(w).SetReadDeadline(began.Add(dropTimeout))
	if wrong := a.admit(r); wrong != nil {
		a.fail(recorded, wrong)
		return
	}
	a.handler(r)(recorded, r)
}

// handler returns what answers a request. It notes the route for the metrics.
func (a *API) handler(r *http.Request) http.HandlerFunc {
	for i := range a.routes {
		route := &a.routes[i]
		if route.matches(r.URL.Path) && route.serves(r.Method) {
			r.Pattern = route.method + " " + route.path
			return route.handle
		}
	}
	return a.nowhere
}

// admit refuses requests by what stands in their head.
func (a *API) admit(r *http.Request) *problem {
	if r.URL.Path == pathHealth {
		return nil
	}
	if a.LocalOnly && !local(r.Host) {
		return refuse("", "host %q is neither localhost nor an address; clients that reach the server by another name "+
			"need --api-key-file", brief(r.Host)).as(http.StatusForbidden, "host_not_allowed")
	}
	if !a.authorised(r.Header.Get("Authorization")) {
		return refuse("", "no valid API key; send the header Authorization: Bearer KEY").
			as(http.StatusUnauthorized, "invalid_api_key")
	}
	if a.draining.Load() && r.Method == http.MethodPost {
		return unavailable("draining", "the server is shutting down; send the request to another one")
	}
	return nil
}

// local reports whether a Host header is an address or localhost.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}

// authorised reports whether a header carries one of the keys. Its time does not depend on the keys.
func (a *API) authorised(header string) bool {
	if len(a.keys) == 0 {
		return true
	}
	scheme, given, _ := strings.Cut(header, " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(given)))
	found := 0
	for i := range a.keys {
		found |= subtle.ConstantTimeCompare(a.keys[i][:], sum[:])
	}
	return found == 1 && strings.EqualFold(scheme, "Bearer")
}

// nowhere answers a request that has no route.
func (a *API) nowhere(w http.ResponseWriter, r *http.Request) {
	var paths, methods []string
	for i := range a.routes {
		route := &a.routes[i]
		paths = append(paths, route.path)
		if route.matches(r.URL.Path) {
			methods = append(methods, route.method)
		}
	}
	if len(methods) > 0 {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		a.fail(w, refuse("", "%s %s: want %s", brief(r.Method), brief(r.URL.Path), methods[0]).
			as(http.StatusMethodNotAllowed, "method_not_allowed"))
		return
	}
	a.fail(w, refuse("", "%q: no such path; there are %s", brief(r.URL.Path), strings.Join(slices.Compact(paths), ", ")).
		as(http.StatusNotFound, "not_found"))
}

// model is the entry of a list of models.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Owner   string `json:"owned_by"`
	Context int    `json:"max_model_len"` // as other servers call it
}

func (a *API) served() model { return model{a.Model, "model", a.began.Unix(), "hetc", a.Context} }

// listModels lists the one there is.
func (a *API) listModels(w http.ResponseWriter, _ *http.Request) {
	a.write(w, http.StatusOK, map[string]any{"object": "list", "data": []model{a.served()}})
}

// oneModel describes it.
func (a *API) oneModel(w http.ResponseWriter, r *http.Request) {
	if wrong := a.named(strings.TrimPrefix(r.URL.Path, pathModels)); wrong != nil {
		a.fail(w, wrong)
		return
	}
	a.write(w, http.StatusOK, a.served())
}

// named refuses the name of another model.
func (a *API) named(name string) *problem {
	if name == a.Model {
		return nil
	}
	return refuse("model", "model %q is not served here; want %q", brief(name), a.Model).
		as(http.StatusNotFound, "model_not_found")
}

// health tells whether requests are answered.
func (a *API) health(w http.ResponseWriter, _ *http.Request) {
	if a.draining.Load() {
		a.write(w, http.StatusServiceUnavailable, map[string]string{"status": "draining"})
		return
	}
	a.write(w, http.StatusOK, map[string]string{"status": "ok"})
}

// fail answers with a problem.
func (a *API) fail(w http.ResponseWriter, wrong *problem) {
	if wrong.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if wrong.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	a.write(w, wrong.status, wrong)
}

// write answers with a document. A client that does not take it within the time limit is disconnected.
func (a *API) write(w http.ResponseWriter, status int, document any) {
	text := encode(document)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// encode returns a document as a line of JSON.
func encode(document any) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		panic(fmt.Sprintf("encode %T: %v", document, err)) // documents are ours and have an encoding
	}
	return out.Bytes()
}

// draw returns a random number.
func (a *API) draw() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.random.Uint64()
}
