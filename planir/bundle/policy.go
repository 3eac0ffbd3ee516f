package bundle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hetc/hetc/internal/diag"
)

// defaultMaxJump is how far a security version may lie above the floor: a stolen key cannot
// then lock out every later bundle by signing the largest number.
const defaultMaxJump = 1000

// Policy is what a host demands of a bundle beside a signature: the product, the features that it needs, a security
// version that is not too low, and dates.
type Policy struct {
	Product       string   // the only product accepted; "": any, for tools
	SecurityFloor int64    // least security version, compiled into the host
	Stored        Ratchets // what was stored after earlier successes, by product
	MaxJump       int64    // 0: defaultMaxJump
	Now           int64    // Unix seconds of a clock that can be trusted; 0: there is none, expiry is not checked
	AllowDev      bool     // count signatures by development keys
	Runtime       string   // this runtime's version, dotted numbers
	Features      []string // manifest features the host implements beside FeatureChunks
}

// Host describes the machine that is to run the bundle.
type Host struct {
	SoC         []string // every name this SoC answers to
	SoCAdvice   string   // how it might answer to another one, for the refusal; "": that is not known
	OS          string   // runtime.GOOS
	Arch        string   // runtime.GOARCH
	CPUFeatures []string
	RAMBytes    int64
	Components  map[string]HostComponent // by name, "library/onnxruntime"
}

// HostComponent is a driver or library as found.
type HostComponent struct {
	Version string
	// Accepts is the vendor's own compatibility check of an artifact token; nil refuses every token.
	Accepts func(token string) error
}

// checkCompat applies the step compat.
func (p *Policy) checkCompat(manifest *Manifest) error {
	for _, feature := range manifest.Requires.Features {
		if feature != FeatureChunks && !slices.Contains(p.Features, feature) {
			return refuse(stepCompat, "the bundle needs feature %q, which this program does not know", feature).
				hint("use a newer hetrun, or the one inside a newer bundle's release")
		}
	}
	if want := manifest.Requires.Runtime; want != "" {
		less, ok := versionLess(p.Runtime, want)
		if !ok || less {
			return refuse(stepCompat, "the bundle needs runtime version %q, this one has %q", want, p.Runtime).
				hint("update hetrun")
		}
	}
	return nil
}

// check applies the step policy; host may be nil, which leaves the target out.
func (p *Policy) check(manifest *Manifest, trust *Keyring, host *Host) error {
	if p.Product != "" && manifest.Product != p.Product {
		return refuse(stepPolicy, "product %q, want %q", manifest.Product, p.Product).
			hint("this host accepts bundles of one product only; emit with that product name")
	}
	if manifest.KeyringGeneration != trust.Generation {
		return refuse(stepPolicy, "signed for keyring generation %d, the trusted keyring has %d",
			manifest.KeyringGeneration, trust.Generation).
			hint("use the keyring and the bundle of one generation; a .pub alone has generation 1 " +
				"(docs/commands.md, several keys)")
	}
	if err := p.checkRollback(manifest); err != nil {
		return err
	}
	if err := p.checkDates(manifest); err != nil {
		return err
	}
	if host == nil {
		return nil
	}
	return checkTarget(manifest, host)
}

// checkDates compares the manifest's dates with the clock, if there is one.
func (p *Policy) checkDates(manifest *Manifest) error {
	if p.Now == 0 {
		return nil
	}
	if manifest.NotAfter != 0 && p.Now > manifest.NotAfter {
		return refuse(stepPolicy, "expired: not_after %s, the clock says %s", moment(manifest.NotAfter),
			moment(p.Now)).
			hint("fetch a newer bundle; if it is the clock that is wrong, give the time (--now), or accept it all " +
				"the same (--ignore-expiry)")
	}
	if manifest.IssuedAt > p.Now {
		return refuse(stepPolicy, "issued in the future: issued_at %s, the clock says %s", moment(manifest.IssuedAt),
			moment(p.Now)).
			hint("set this machine's clock; where there is none, give the time (--now), or leave it out " +
				"(--ignore-expiry)")
	}
	return nil
}

// checkTarget refuses a bundle for another machine. A simulation gets a message of its own, since no device fits it.
func checkTarget(manifest *Manifest, host *Host) error {
	target := &manifest.Target
	wrong := target.mismatches(host)
	if len(wrong) == 0 {
		return nil
	}
	if target.Simulated() {
		return refuse(stepPolicy, "a simulation of %s, which runs on no device", strings.Join(target.SoC, ", ")).
			hint("`hetc run` executes it on the simulator; for the device, plan with `hetc solve --target` and write " +
				"the bundle with `hetc emit --target`")
	}
	refused := refuse(stepPolicy, "made for another machine: %s", strings.Join(wrong, "; ")).
		hint("emit the bundle for this machine (`hetc probe` describes it), or install what it names")
	if host.SoCAdvice != "" && !target.answeredBy(host) {
		refused.hint("%s", host.SoCAdvice)
	}
	if !slices.ContainsFunc(manifest.Blobs, func(blob Blob) bool { return blob.Role == RoleNPUGraph }) {
		return refused
	}
	refused.hint("graphs of an NPU that is not here: `hetc emit --for-emulator` writes the bundle's twin, which the " +
		"vendor's emulator executes here")
	if target.OS == host.OS && target.Arch == host.Arch { // a twin of another machine
		refused.hint("a twin runs on the machine that wrote it, and on the cores that it had then: write another " +
			"here with `hetc emit --for-emulator`")
	}
	return refused
}

// moment writes Unix seconds with the date that people read.
func moment(seconds int64) string {
	return fmt.Sprintf("%d (%s)", seconds, time.Unix(seconds, 0).UTC().Format(time.RFC3339))
}

// checkRollback compares the security version with the floor: the larger of what is compiled in and what was stored
// for this product and key generation. It also refuses a version far above the floor, see defaultMaxJump.
func (p *Policy) checkRollback(manifest *Manifest) error {
	floor := p.SecurityFloor
	if stored := p.Stored.Of(manifest.Product); stored != nil {
		if manifest.KeyringGeneration < stored.Generation {
			return refuse(stepPolicy, "rolled back: keyring generation %d, this host has accepted %d",
				manifest.KeyringGeneration, stored.Generation).hint("fetch a newer bundle")
		}
		// A new generation starts a new count: what a lost key signed does not bind its successor.
		if manifest.KeyringGeneration == stored.Generation {
			floor = max(floor, stored.SecurityVersion)
		}
	}
	jump := p.MaxJump
	if jump == 0 {
		jump = defaultMaxJump
	}
	switch {
	case manifest.SecurityVersion < floor:
		return refuse(stepPolicy, "rolled back: security version %d, want at least %d", manifest.SecurityVersion,
			floor).hint("fetch a newer bundle")
	case manifest.SecurityVersion-floor > jump:
		return refuse(stepPolicy, "security version %d lies more than %d above %d", manifest.SecurityVersion, jump,
			floor).
			hint("a jump this large looks like a stolen key; if it is intended, raise what is asked for: "+
				"--min-security-version %d", manifest.SecurityVersion)
	}
	return nil
}

// answeredBy reports whether the host's SoC is one of the target's.
func (t *Target) answeredBy(host *Host) bool {
	return len(t.SoC) == 0 || slices.ContainsFunc(t.SoC, func(name string) bool { return slices.Contains(host.SoC, name) })
}

// mismatches lists, in words, what of the target the host does not fulfil.
func (t *Target) mismatches(host *Host) []string {
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if !t.answeredBy(host) {
		say("soc is %q, want %s", host.SoC, diag.OneOf(t.SoC))
	}
	if t.OS != "" && t.OS != host.OS {
		say("os is %q, want %q", host.OS, t.OS)
	}
	if t.Arch != "" && t.Arch != host.Arch {
		say("arch is %q, want %q", host.Arch, t.Arch)
	}
	for _, feature := range t.CPUFeatures {
		if !slices.Contains(host.CPUFeatures, feature) {
			say("cpu feature %q is missing", feature)
		}
	}
	if t.RAMBytes > host.RAMBytes {
		say("memory is %d bytes, want at least %d", host.RAMBytes, t.RAMBytes)
	}
	for i := range t.Components {
		want := &t.Components[i]
		have, found := host.Components[want.Name]
		if !found {
			say("component %q is missing", want.Name)
			continue
		}
		want.compare(have, say)
	}
	return wrong
}

// compare says each way in which the component found misses what the target demands of it.
func (p *Component) compare(have HostComponent, say func(string, ...any)) {
	if p.Exact != "" && have.Version != p.Exact {
		say("component %q has version %q, want exactly %q", p.Name, have.Version, p.Exact)
	}
	// A version that is not dotted numbers cannot be compared, and counts as not fulfilled.
	if p.Min != "" {
		if less, ok := versionLess(have.Version, p.Min); !ok || less {
			say("component %q has version %q, want at least %q", p.Name, have.Version, p.Min)
		}
	}
	if p.Below != "" {
		if less, ok := versionLess(have.Version, p.Below); !ok || !less {
			say("component %q has version %q, want below %q", p.Name, have.Version, p.Below)
		}
	}
	if p.Token != "" {
		if have.Accepts == nil {
			say("component %q cannot check the compatibility token of its artifacts", p.Name)
		} else if err := have.Accepts(p.Token); err != nil {
			say("component %q refuses its artifacts: %v", p.Name, err)
		}
	}
}
