package servecmd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/net/netutil"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/httpapi"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

// started is the document of --json, once requests are answered.
type started struct {
	URL      string `json:"url"` // what clients call the base URL
	Model    string `json:"model"`
	Identity string `json:"identity"` // of the bundle
	Slots    int    `json:"slots"`
	Context  int    `json:"context"` // positions of a sequence
}

// run serves a bundle as the flags say, until ctx ends.
func run(ctx context.Context, ui *cli.Streams, path string, flags *options, drivers []driver.Driver) error {
	if err := flags.validate(); err != nil {
		return err
	}
	maxBody, err := flags.largestBody()
	if err != nil {
		return err
	}
	flags.maxConnections = connectionsWithin(mostFiles(), flags.maxConnections, ui.Warnf)
	door, err := flags.open(ctx, ui)
	if err != nil {
		return err
	}
	defer door.Close()

	// Loading ends with the first signal, work only when the requests under way have had their time.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	loading := context.AfterFunc(ctx, cancel)
	loaded, err := runcmd.Load(work, ui, path, flags.terms, flags.anyMachine, drivers, flags.deadline)
	if err != nil {
		return err
	}
	defer loaded.Close()
	var log *recording
	if flags.record != "" {
		if log, err = record(flags.record, ui.Warnf); err != nil {
			return err
		}
		defer log.Close()
	}
	server, err := flags.prepare(work, ui, loaded, log)
	if err != nil {
		return err
	}
	if !loading() {
		return ctx.Err()
	}

	plan := loaded.Machine.Plan()
	clients := &connections{most: flags.maxConnections, open: map[net.Conn]bool{}}
	api := httpapi.New(httpapi.Shared(server), httpapi.Options{
		Model: flags.model, Fingerprint: "fp_" + loaded.Digest()[:12], Tokenizer: loaded.Tokenizer,
		Context: plan.MaxContext, Vocabulary: loaded.Machine.Vocabulary(), MaxTokens: flags.maxTokens, MaxBody: maxBody,
		Timeout: flags.requestTimeout, Keys: door.keys, LocalOnly: door.local && door.keys == nil,
		Crowded: clients.full, Logf: ui.Warnf,
	})
	s := &service{ui: ui, server: server, api: api, web: api.HTTPServer(), cancel: cancel, drain: flags.drainTimeout}
	s.web.ConnState = clients.changed
	s.begin(work, door)
	ui.Printf("%s/v1 serves %s, %d at a time, with a context of %d\n", door.url(), flags.model, flags.slots,
		plan.MaxContext)
	err = ui.Result(started{door.url() + "/v1", flags.model, loaded.Digest(), flags.slots, plan.MaxContext})
	outliveReaders()
	err = errors.Join(err, s.wait(ctx))
	if mem.IsFault(err) { // of a page that cannot be read although the file has not changed
		err = fmt.Errorf("%s: %w", path, err)
	}
	return err
}

// outliveReaders has the server go on when nobody reads what it says any more. Ctrl-C in a terminal also ends the tee
// that writes the log, and Go would end a process that then writes to it, in the middle of answers.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// prepare makes a server of what is loaded, and sets the flags that have no value yet. Every program is executed first,
// and a token generated: a bundle that does not work is told, and weights are loaded, before a request waits for it.
func (o *options) prepare(ctx context.Context, ui *cli.Streams, loaded *runcmd.Loaded,
	log *recording) (*serving.Server, error) {
	machine := loaded.Machine
	if loaded.Tokenizer == nil {
		return nil, diag.New(diag.ClassInput, "the bundle has no tokenizer, so that text cannot be served").
			WithHint("emit it from a model directory with tokenizer.json; hetrun --tokens takes token ids")
	}
	if o.slots == 0 {
		o.slots = machine.Sequences()
	}
	if o.model == "" {
		o.model = machine.Plan().Model.Name
	}
	if o.maxTokens == 0 {
		o.maxTokens = machine.Plan().MaxContext
	}
	if err := serving.Warm(ctx, machine); err != nil {
		return nil, err
	}
	if _, err := machine.Generate(ctx, []int32{0}, 1, &executor.Sampler{}, nil); err != nil {
		return nil, err
	}
	machine.Reset()
	if err := loaded.Worked(ui); err != nil {
		return nil, err
	}
	config := scheduler.Default(o.slots)
	config.Policy, config.Queue = scheduler.Policy(o.policy), o.maxQueue
	if machine.Sequences() == 1 {
		ui.Notef("the plan decodes one sequence at a time: requests are answered one after the other (a workload with " +
			"batches decodes several together)")
	}
	options := serving.Options{Scheduler: config, Draft: o.draft}
	if log != nil {
		options.Ended = log.ended
	}
	if computed := loaded.Prefix; computed != nil {
		options.Prefix, options.PrefixCache = computed.Tokens, computed.Cache
	}
	server, err := serving.New(machine, options)
	if err == nil && o.draft > 0 && !server.Guesses() {
		ui.Warnf("--draft %d: no tokens are guessed: calls of several tokens would not compute the bits of plain decoding "+
			"with this plan", o.draft)
	}
	return server, err
}

// door is where requests come in.
type door struct {
	net.Listener
	keys   []string
	secure *tls.Config // nil: plain HTTP
	local  bool        // for this machine only
}

// open begins to listen; nothing is accepted yet. Other machines are served with keys, or where the flags say that none
// are needed.
func (o *options) open(ctx context.Context, ui *cli.Streams) (*door, error) {
	out := &door{}
	var err error
	if o.keyFile != "" {
		if out.keys, err = readKeys(o.keyFile); err != nil {
			return nil, err
		}
	}
	if o.tlsCert != "" {
		if out.secure, err = readCertificate(o.tlsCert, o.tlsKey, time.Now(), ui.Warnf); err != nil {
			return nil, err
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return nil, diag.New(diag.ClassUnavailable, "--listen %q: %w", o.listen, err).
			WithHint("give an address of this machine and a free port, such as 127.0.0.1:8081; port 0 is a free one")
	}
	out.Listener = netutil.LimitListener(listener, o.maxConnections)
	address, ok := listener.Addr().(*net.TCPAddr)
	out.local = ok && address.IP.IsLoopback()
	switch {
	case out.local:
	case out.keys == nil && !o.withoutKey:
		return nil, errors.Join(diag.New(diag.ClassUsage, "--listen %q serves other machines, and there are no API keys",
			o.listen).WithHint("give --api-key-file FILE, or --insecure-no-key where something else keeps strangers out"),
			listener.Close())
	case out.secure == nil && out.keys != nil:
		ui.Warnf("API keys and texts cross the network unencrypted: give --tls-cert and --tls-key, or have a proxy do it")
	}
	return out, nil
}

// url returns how clients on this machine call the server.
func (d *door) url() string {
	scheme := "http"
	if d.secure != nil {
		scheme = "https"
	}
	host := d.Addr().String()
	if address, ok := d.Addr().(*net.TCPAddr); ok && address.IP.IsUnspecified() {
		host = net.JoinHostPort("localhost", strconv.Itoa(address.Port))
	}
	return scheme + "://" + host
}

// service is what runs while requests are answered.
type service struct {
	ui      *cli.Streams
	server  *serving.Server
	api     *httpapi.API
	web     *http.Server
	cancel  context.CancelFunc // ends all requests
	drain   time.Duration
	engine  chan error // what Run returned
	clients chan error // what Serve returned
}

// begin answers requests.
func (s *service) begin(work context.Context, door *door) {
	s.engine, s.clients = make(chan error, 1), make(chan error, 1)
	go func() { s.engine <- s.server.Run(work) }()
	go func() {
		if door.secure == nil {
			s.clients <- s.web.Serve(door)
			return
		}
		s.web.TLSConfig = door.secure
		s.clients <- s.web.ServeTLS(door, "", "")
	}()
}

// wait returns when ctx has ended and with it the requests under way, or when a processor or the listener fails.
func (s *service) wait(ctx context.Context) error {
	var failed error
	engine := s.engine
	select {
	case <-ctx.Done():
		s.ui.Notef("shutting down: requests under way have %v to end; a second signal ends them now", s.drain)
	case failed = <-s.engine:
		engine = nil // nothing more comes
	case failed = <-s.clients:
		failed = diag.New(diag.ClassIO, "accept connections: %w", failed)
	}
	s.api.Drain()
	patience := s.drain
	if failed != nil {
		patience = lastWords
	}
	if !s.shut(ctx, patience) {
		s.ui.Warnf("requests under way were ended after %v", patience)
		s.cancel()
		s.shut(ctx, lastWords)
	}
	_ = s.web.Close()
	s.cancel()
	if engine != nil {
		failed = errors.Join(failed, <-engine)
	}
	return failed
}

// lastWords is how long clients have to take the error that their requests end with.
const lastWords = 2 * time.Second

// shut accepts no more connections and waits until no request is under way; false says that some still are.
func (s *service) shut(ctx context.Context, patience time.Duration) bool {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return !errors.Is(s.web.Shutdown(limited), context.DeadlineExceeded)
}
