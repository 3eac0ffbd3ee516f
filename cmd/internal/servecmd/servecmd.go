// Package servecmd knows the command line of hetserve: it verifies a bundle for this machine, loads its plan onto the
// processors, and lets requests over HTTP share them until a signal ends it.
package servecmd

import (
	_ "embed"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/scheduler"
)

// options are the flags.
type options struct {
	terms          accept.Terms
	listen         string
	model          string
	slots          int
	policy         string
	keyFile        string
	withoutKey     bool
	tlsCert        string
	tlsKey         string
	maxBody        string
	maxQueue       int
	maxTokens      int
	maxConnections int
	draft          int
	record         string
	requestTimeout time.Duration
	drainTimeout   time.Duration
	anyMachine     bool
	deadline       time.Duration
}

// longHelp is the long description of the command.
//
//go:embed long.txt
var longHelp string

// New returns the command. drivers are those that it may open a plan's processors with.
func New(ui *cli.Streams, drivers []driver.Driver) *cobra.Command {
	var given options
	cmd := &cobra.Command{
		Use:   "hetserve BUNDLE --trust KEY.pub",
		Short: "verify a bundle and serve its model over HTTP",
		Long:  strings.TrimSuffix(longHelp, "\n"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return diag.New(diag.ClassUsage, "%s: got %d arguments, want one bundle", cmd.CommandPath(), len(args)).
					WithHint("usage: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Required(cmd, "trust"); err != nil {
				return err
			}
			return run(cmd.Context(), ui, args[0], &given, drivers)
		},
	}
	flags := cmd.Flags()
	given.terms.Register(flags)
	given.terms.RegisterCopy(flags)
	flags.StringVar(&given.listen, "listen", "127.0.0.1:8080", "address and port to listen at; port 0: a free one")
	flags.StringVar(&given.model, "model", "", "name of the model in requests; default: that of the plan")
	flags.IntVar(&given.slots, "slots", 0,
		"most requests that are decoded together; 0: as many as the plan has sequences")
	flags.StringVar(&given.policy, "policy", string(scheduler.Full),
		"how requests share the machine: full (classes and preemption), batching (in the order of arrival) or fcfs (one "+
			"at a time)")
	flags.IntVar(&given.draft, "draft", -1,
		"most tokens to guess from the text so far, and to verify together, for a request that decodes alone; answers stay "+
			"the same; 0: none; -1: as the plan says")
	flags.StringVar(&given.record, "record", "",
		"file to which every request that ends is appended: when it came, its class and its lengths, no text; hetc solve and "+
			"hetc simulate read it")
	flags.StringVar(&given.keyFile, "api-key-file", "", "file with an API key a line, one of which requests must carry")
	flags.BoolVar(&given.withoutKey, "insecure-no-key", false,
		"serve other machines without API keys: something else keeps strangers out")
	flags.StringVar(&given.tlsCert, "tls-cert", "", "PEM file with the certificate chain to serve HTTPS with")
	flags.StringVar(&given.tlsKey, "tls-key", "", "PEM file with the certificate's private key")
	flags.StringVar(&given.maxBody, "max-body", "1MiB", "largest body of a request")
	flags.IntVar(&given.maxQueue, "max-queue", 64, "most requests of a class that wait for a slot; further ones get status 429")
	flags.IntVar(&given.maxTokens, "max-tokens", 0, "most tokens of an answer; 0: as many as the context holds")
	flags.IntVar(&given.maxConnections, "max-connections", 256, "most connections at a time; further ones take the place of idle ones, or wait")
	flags.DurationVar(&given.requestTimeout, "request-timeout", 10*time.Minute,
		"longest time of a request, from its body to the end of its answer")
	flags.DurationVar(&given.drainTimeout, "drain-timeout", 30*time.Second,
		"how long requests under way may take after the first signal")
	flags.BoolVar(&given.anyMachine, "any-machine", false, "do not refuse a bundle that was made for another machine")
	flags.DurationVar(&given.deadline, "deadline", 2*time.Minute, "give up when no step finishes for this long")
	return cmd
}

// largestBody is the value of --max-body. No body at all would be no request.
func (o *options) largestBody() (int64, error) {
	size, err := cli.ParseSize("max-body", o.maxBody)
	if err == nil && size < 1 {
		err = diag.New(diag.ClassUsage, "--max-body must be 1 byte or more, got %q", o.maxBody).
			WithHint("give a size such as 1MiB; there is no value for any size")
	}
	return size, err
}

// validate refuses values that mean nothing, with an error of class ClassUsage.
func (o *options) validate() error {
	for _, least := range []struct {
		flag        string
		value, want int
	}{
		{"slots", o.slots, 0}, {"max-queue", o.maxQueue, 1}, {"max-tokens", o.maxTokens, 0},
		{"max-connections", o.maxConnections, 1}, {"draft", o.draft, -1},
	} {
		if least.value < least.want {
			return diag.New(diag.ClassUsage, "--%s must be %d or more, got %d", least.flag, least.want, least.value)
		}
	}
	if o.draft > planir.MaxDraft {
		return diag.New(diag.ClassUsage, "--draft must be %d or less, got %d", planir.MaxDraft, o.draft).
			WithHint("give -1 for as many tokens as the plan says")
	}
	for _, positive := range []struct {
		flag  string
		value time.Duration
	}{
		{"request-timeout", o.requestTimeout}, {"drain-timeout", o.drainTimeout}, {"deadline", o.deadline},
	} {
		if positive.value <= 0 {
			return diag.New(diag.ClassUsage, "--%s must be positive, got %v", positive.flag, positive.value).
				WithHint("give a time such as 30s or 2m")
		}
	}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		return diag.New(diag.ClassUsage, "--tls-cert and --tls-key need each other").
			WithHint("give both for HTTPS, or neither for HTTP")
	}
	if o.withoutKey && o.keyFile != "" {
		return diag.New(diag.ClassUsage, "--insecure-no-key and --api-key-file exclude each other").
			WithHint("leave --insecure-no-key out: requests need a key then")
	}
	if err := validAddress(o.listen); err != nil {
		return err
	}
	if !slices.Contains(scheduler.Policies, scheduler.Policy(o.policy)) {
		var policies []string
		for _, policy := range scheduler.Policies {
			policies = append(policies, string(policy))
		}
		return diag.New(diag.ClassUsage, "--policy %q: there is no such policy", o.policy).
			WithHint("%s", diag.DidYouMean(o.policy, policies))
	}
	return o.terms.Validate()
}

// validAddress refuses what is no address and port, with an error of class ClassUsage. Whether the address is one of
// this machine is found out by listening.
func validAddress(listen string) error {
	_, port, err := net.SplitHostPort(listen)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return diag.New(diag.ClassUsage, "--listen %q: %w", listen, err).
			WithHint("give an address and a port, such as 127.0.0.1:8081; port 0 is a free one")
	}
	return nil
}
