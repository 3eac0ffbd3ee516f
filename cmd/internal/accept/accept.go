// Package accept knows on what terms a command accepts a bundle: whose signatures, which product, from which
// security version on, at what time, and what this host has accepted before. Commands that open bundles share its
// flags, and what it says about what was compared and what was not.
package accept

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir/bundle"
)

// Terms are the values of the flags.
type Terms struct {
	trust        string // file of the trusted public key, or a keyring
	allowDev     bool
	product      string
	minSecurity  int64  // least accepted security version
	state        string // file that remembers the highest versions seen; "": none
	now          string // time that expiry is compared with; "": this machine's clock
	ignoreExpiry bool
	copy         bool // the bundle is read into memory before it is verified
}

// Names of the flags.
const (
	flagTrust        = "trust"
	flagAllowDev     = "allow-dev"
	flagProduct      = "product"
	flagMinSecurity  = "min-security-version"
	flagState        = "state"
	flagNow          = "now"
	flagIgnoreExpiry = "ignore-expiry"
	flagCopy         = "copy"
)

// Flags lists the flags that a command with Register and RegisterCopy has.
var Flags = []string{flagTrust, flagAllowDev, flagProduct, flagMinSecurity, flagState, flagNow, flagIgnoreExpiry,
	flagCopy}

// Register adds the flags.
func (t *Terms) Register(f *pflag.FlagSet) {
	f.StringVar(&t.trust, flagTrust, "", "public key (.pub) or keyring file the bundle must be signed by")
	f.BoolVar(&t.allowDev, flagAllowDev, false, "accept a signature by a development key")
	f.StringVar(&t.product, flagProduct, "", "the only product to accept; default: any")
	f.Int64Var(&t.minSecurity, flagMinSecurity, 0, "least security version to accept")
	f.StringVar(&t.state, flagState, "", "file with the security versions accepted so far: older bundles are refused")
	f.StringVar(&t.now, flagNow, "",
		"time to compare expiry with, as 2026-12-31T00:00:00Z or Unix seconds; default: this machine's clock")
	f.BoolVar(&t.ignoreExpiry, flagIgnoreExpiry, false,
		"accept a bundle that has expired, or that was issued in the future")
}

// RegisterCopy adds the flag of commands that execute a bundle.
func (t *Terms) RegisterCopy(f *pflag.FlagSet) {
	f.BoolVar(&t.copy, flagCopy, false,
		"read the whole bundle into private memory and verify it there, for files that others may write to")
}

// Validate refuses flags that contradict each other.
func (t *Terms) Validate() error {
	if t.ignoreExpiry && t.now != "" {
		return diag.New(diag.ClassUsage, "--%s and --%s exclude each other", flagIgnoreExpiry, flagNow).
			WithHint("give one of them")
	}
	if t.minSecurity < 0 {
		return diag.New(diag.ClassUsage, "--%s must be 0 or more, got %d", flagMinSecurity, t.minSecurity)
	}
	_, err := t.clock()
	return err
}

// Accepted is a verified bundle and how it was accepted.
type Accepted struct {
	*bundle.Bundle
	terms *Terms
	state *state // nil: there is none
}

// Open verifies the bundle at path on these terms. host is the machine that shall execute it; nil leaves its target
// out.
func (t *Terms) Open(ui *cli.Streams, path string, host *bundle.Host) (*Accepted, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	trust, err := bundle.LoadTrust(t.trust)
	if err != nil {
		return nil, err
	}
	now, err := t.clock()
	if err != nil {
		return nil, err
	}
	accepted := &Accepted{terms: t}
	policy := bundle.Policy{Product: t.product, SecurityFloor: t.minSecurity, Now: now, AllowDev: t.allowDev,
		Runtime: cli.Version}
	if t.state != "" {
		if accepted.state, err = openState(t.state); err != nil {
			return nil, err
		}
		policy.Stored = accepted.state.stored
	}
	options := bundle.Options{Trust: trust, Policy: policy, Host: host}
	if t.copy {
		options.Mode, options.Admit = bundle.Copy, fits
	}
	if accepted.Bundle, err = bundle.Open(path, options); err != nil {
		return nil, err
	}
	if t.ignoreExpiry {
		ui.Notef("%s: expiry is not compared (--%s)", path, flagIgnoreExpiry)
	}
	return accepted, nil
}

// clock returns the time in Unix seconds that expiry is compared with, 0 for none.
func (t *Terms) clock() (int64, error) {
	switch {
	case t.ignoreExpiry:
		return 0, nil
	case t.now == "":
		return max(1, time.Now().Unix()), nil // a clock that was never set is one, too
	}
	seconds, err := strconv.ParseInt(t.now, 10, 64)
	if err != nil {
		at, bad := time.Parse(time.RFC3339, t.now)
		if seconds = at.Unix(); bad != nil {
			seconds = 0
		}
	}
	if seconds < 1 {
		return 0, diag.New(diag.ClassUsage, "--%s %q: want a time after 1970", flagNow, t.now).
			WithHint("write 2026-12-31T00:00:00Z, or Unix seconds")
	}
	return seconds, nil
}

// fits refuses a copy that needs more memory than is free, before any of it is allocated.
func fits(m *bundle.Manifest) error {
	need, free := bundle.CopiedBytes(m), machine.FreeMemory()
	if free > 0 && need > free {
		return diag.New(diag.ClassUnavailable, "copy the bundle: needs %v of memory, and %v are free", unit.Bytes(need),
			unit.Bytes(free)).
			WithHint("without --%s weights are read in place and checked when they are first needed", flagCopy)
	}
	return nil
}

// CopiedBytes returns how much of the bundle was read into private memory because of --copy, 0 without.
func (a *Accepted) CopiedBytes() int64 {
	if !a.terms.copy {
		return 0
	}
	return bundle.CopiedBytes(a.Manifest())
}

// Remember stores what the bundle demands of later ones. It is called after the first successful run, never before: a
// bundle that does not work must not keep its predecessor from running.
func (a *Accepted) Remember(ui *cli.Streams) error {
	if a.state == nil {
		return nil
	}
	return a.state.raise(ui, a.Ratchet())
}
