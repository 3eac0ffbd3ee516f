package bundle

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Digest is a SHA-256 value; it prints as hex.
type Digest [32]byte

// String returns the digest as manifests and file names have it: 64 lower-case hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Role says what a blob is for.
type Role string

const (
	RolePlan      Role = "plan"       // a program with its shapes, offsets and indices
	RoleNPUGraph  Role = "npu-graph"  // what an NPU's driver compiled
	RoleGPUKernel Role = "gpu-kernel" // what a GPU's driver compiled, or its source
	roleRuntime   Role = "runtime"    // an executable for the target
	RoleWeights   Role = "weights"    // packed weights
	RoleTokenizer Role = "tokenizer"
	RoleConfig    Role = "config"
	RoleReference Role = "reference" // values to test execution against; its program has RolePlan
	RoleReport    Role = "report"
	RoleSelfTest  Role = "self-test" // what each kernel of the entry plan computes of inputs that follow from the plan
	RolePrefix    Role = "prefix"    // the cache of tokens that prompts begin with, computed by the entry plan
)

// bulk roles are read in place by Mode; all others are copied and checked on opening, because
// parsers and vendors' loaders believe what is in them.
func (r Role) bulk() bool { return r == RoleWeights || r == RoleReference }

// known reports whether the format defines the role.
func (r Role) known() bool {
	switch r {
	case RolePlan, RoleNPUGraph, RoleGPUKernel, roleRuntime, RoleWeights, RoleTokenizer, RoleConfig, RoleReference,
		RoleReport, RoleSelfTest, RolePrefix:
		return true
	}
	return false
}

// Manifest is what is signed. Strings are printable ASCII without quote and backslash.
type Manifest struct {
	Product           string // the domain of trust and rollback, such as "com.example.assistant"
	Version           string // for people; never compared
	SecurityVersion   int64  // raised only when older bundles must be refused
	KeyringGeneration int64  // the keyring this bundle was signed for, from 1
	IssuedAt          int64  // Unix seconds, 0: not stated
	NotAfter          int64  // Unix seconds, 0: does not expire
	Toolchain         Toolchain
	Requires          Requires
	Target            Target
	Budget            Budget
	Entrypoint        string // the blob of RolePlan to start with
	ChunkBytes        int64  // power of two, 4 KiB to 16 MiB
	Blobs             []Blob // ascending by name
	Licenses          []string
	Annotations       map[string]string
}

// Toolchain says what made the bundle; for people.
type Toolchain struct {
	Hetc       string // version of hetc
	Plan       string // schema of the plan
	InputsLock Digest // digest over the inputs, zero: not stated
}

// Requires lists what the host must be able to do; an unknown feature is a refusal.
type Requires struct {
	Runtime  string   // least runtime version, dotted numbers, "": any
	Features []string // ascending
}

// Target says where the bundle may run. Empty members accept anything.
type Target struct {
	SoC         []string    // names of SoCs, ascending; the host must answer to one of them
	OS          string      // as runtime.GOOS
	Arch        string      // as runtime.GOARCH
	CPUFeatures []string    // ascending; all are needed
	RAMBytes    int64       // least memory of the machine
	Components  []Component // ascending by name; all are needed
}

// SimulatedSoC begins the name of a target that is the simulation of a SoC. No device answers to such a name.
const SimulatedSoC = "simulated:"

// Simulated reports whether the bundle is for a simulator.
func (t *Target) Simulated() bool {
	return slices.ContainsFunc(t.SoC, func(name string) bool { return strings.HasPrefix(name, SimulatedSoC) })
}

// Component is a driver or library that the target must have.
type Component struct {
	Name  string // "driver/opencl", "library/onnxruntime"
	Min   string // least version, dotted numbers
	Below string // first version that is too new, dotted numbers
	Exact string // the only version, compared as text
	Token string // opaque; handed to the component's own compatibility check
}

// Budget states what execution needs at its peak, for admission before anything is mapped.
type Budget struct {
	HostBytes   int64 // main memory
	DeviceBytes int64 // memory that only accelerators address
}

// Blob is one content-addressed piece. Name is a label and never becomes a path.
type Blob struct {
	Name   string // [a-z0-9._/-], at most 200 bytes, no empty, "." or ".." segment
	Role   Role
	Type   string // media type
	Bytes  int64
	Align  int64  // of its offset in the file; power of two, 64 bytes to 2 MiB, at least 64 KiB from that size on
	SHA256 Digest // of the content
	Root   Digest // over its chunk digests
}

// Encode returns the canonical bytes of m, or why they would not be a legal manifest.
func (m *Manifest) Encode() ([]byte, error) {
	data, err := encode(m.walk)
	if err == nil {
		err = m.check()
	}
	return data, err
}

// CheckStated returns why Write would refuse what m states beside its blobs. Contents may take hours to make: who makes
// them asks before.
func (m *Manifest) CheckStated() error {
	stated := *m
	stated.Entrypoint, stated.ChunkBytes = "plan", leastChunk
	if stated.KeyringGeneration == 0 { // as Write does
		stated.KeyringGeneration = 1
	}
	stated.Blobs = []Blob{{Name: stated.Entrypoint, Role: RolePlan, Type: "any", Align: minAlign}}
	_, err := stated.Encode()
	return err
}

// decodeManifest reads canonical bytes.
func decodeManifest(data []byte) (*Manifest, error) {
	manifest := new(Manifest)
	if err := decode(data, manifest.walk); err != nil {
		return nil, err
	}
	return manifest, manifest.check()
}

// walk describes the manifest member by member, for reading and for writing alike: what is empty and optional is left
// out.
func (m *Manifest) walk(c *codec) {
	// Members in this order, and no others: that a manifest has one spelling alone is what lets its digest name it.
	c.object(func() {
		c.member("schema")
		c.constant(manifestSchema)
		c.member("product")
		c.str(&m.Product, maxName)
		c.optionalStr("version", &m.Version, maxName)
		c.member("security_version")
		c.integer(&m.SecurityVersion, 0, maxCounter)
		c.member("keyring_generation")
		c.integer(&m.KeyringGeneration, 1, maxCounter)
		if c.optional("issued_at", m.IssuedAt == 0) {
			c.integer(&m.IssuedAt, 0, maxInteger)
		}
		if c.optional("not_after", m.NotAfter == 0) {
			c.integer(&m.NotAfter, 0, maxInteger)
		}
		if c.optional("toolchain", m.Toolchain == Toolchain{}) {
			m.Toolchain.walk(c)
		}
		if c.optional("requires", m.Requires.Runtime == "" && len(m.Requires.Features) == 0) {
			c.object(func() {
				c.optionalStr("runtime", &m.Requires.Runtime, maxName)
				c.names("features", &m.Requires.Features, maxFeatures)
			})
		}
		c.member("target")
		m.Target.walk(c)
		if c.optional("budget", m.Budget == Budget{}) {
			c.object(func() {
				c.member("host_peak")
				c.integer(&m.Budget.HostBytes, 0, maxBytes)
				c.member("device_peak")
				c.integer(&m.Budget.DeviceBytes, 0, maxBytes)
			})
		}
		c.member("entrypoint")
		c.str(&m.Entrypoint, maxName)
		c.member("chunk_size")
		c.integer(&m.ChunkBytes, minChunk, maxChunk)
		c.member("blobs")
		list(c, &m.Blobs, maxBlobs, func(blob *Blob) { blob.walk(c) })
		c.names("licenses", &m.Licenses, maxLicenses)
		if c.optional("annotations", len(m.Annotations) == 0) {
			m.walkAnnotations(c)
		}
	})
}

// walk describes the member "toolchain".
func (t *Toolchain) walk(c *codec) {
	c.object(func() {
		c.optionalStr("hetc", &t.Hetc, maxName)
		c.optionalStr("plan", &t.Plan, maxName)
		if c.optional("inputs_lock", t.InputsLock == Digest{}) {
			c.digest(&t.InputsLock)
		}
	})
}

// walk describes the member "target".
func (t *Target) walk(c *codec) {
	c.object(func() {
		c.names("soc", &t.SoC, maxComponents)
		c.optionalStr("os", &t.OS, maxName)
		c.optionalStr("arch", &t.Arch, maxName)
		c.names("cpu_features", &t.CPUFeatures, maxFeatures)
		if c.optional("ram_min", t.RAMBytes == 0) {
			c.integer(&t.RAMBytes, 0, maxBytes)
		}
		if c.optional("components", len(t.Components) == 0) {
			list(c, &t.Components, maxComponents, func(component *Component) { component.walk(c) })
		}
	})
}

// walk describes one element of "components".
func (p *Component) walk(c *codec) {
	c.object(func() {
		c.member("name")
		c.str(&p.Name, maxName)
		c.optionalStr("min", &p.Min, maxName)
		c.optionalStr("below", &p.Below, maxName)
		c.optionalStr("exact", &p.Exact, maxName)
		c.optionalStr("token", &p.Token, maxString)
	})
}

// walk describes one element of "blobs".
func (b *Blob) walk(c *codec) {
	c.object(func() {
		c.member("name")
		c.str(&b.Name, maxName)
		c.member("role")
		c.str((*string)(&b.Role), maxName)
		c.member("type")
		c.str(&b.Type, maxName)
		c.member("size")
		c.integer(&b.Bytes, 0, maxBytes)
		c.member("align")
		c.integer(&b.Align, minAlign, maxAlign)
		c.member("sha256")
		c.digest(&b.SHA256)
		c.member("root")
		c.digest(&b.Root)
	})
}

// names describes an optional list of short strings.
func (c *codec) names(key string, to *[]string, limit int) {
	if c.optional(key, len(*to) == 0) {
		list(c, to, limit, func(v *string) { c.str(v, maxName) })
	}
}

// walkAnnotations describes an object with free keys; the encoder sorts them, and the
// comparison after decoding therefore demands them ascending and unique.
func (m *Manifest) walkAnnotations(c *codec) {
	c.object(func() {
		if c.encoding {
			if len(m.Annotations) > maxAnnotations {
				c.fail("%d annotations, want at most %d", len(m.Annotations), maxAnnotations)
			}
			for _, name := range slices.Sorted(maps.Keys(m.Annotations)) {
				value := m.Annotations[name]
				c.separate()
				c.str(&name, maxName)
				c.token(":")
				c.str(&value, maxString)
			}
			return
		}
		m.Annotations = map[string]string{}
		for c.err == nil && !c.has("}") {
			if len(m.Annotations) == maxAnnotations {
				c.fail("more than %d annotations", maxAnnotations)
				return
			}
			var name, value string
			c.separate()
			c.str(&name, maxName)
			c.token(":")
			c.str(&value, maxString)
			m.Annotations[name] = value
		}
	})
}

// check applies the rules of SPEC.md section 4 that go beyond the form and range of one value,
// which walk has seen to.
func (m *Manifest) check() error {
	if err := checkLabel("product", m.Product); err != nil {
		return err
	}
	if m.NotAfter != 0 && m.NotAfter < m.IssuedAt {
		return fmt.Errorf("not_after %d lies before issued_at %d", m.NotAfter, m.IssuedAt)
	}
	if m.ChunkBytes&(m.ChunkBytes-1) != 0 {
		return fmt.Errorf("chunk_size %d is not a power of two", m.ChunkBytes)
	}
	if version := m.Requires.Runtime; version != "" && !isVersion(version) {
		return fmt.Errorf("requires.runtime %q is not dotted numbers", version)
	}
	// One order for each set makes the encoding canonical.
	for _, list := range []struct {
		name  string
		items []string
	}{
		{"requires.features", m.Requires.Features}, {"target.soc", m.Target.SoC},
		{"target.cpu_features", m.Target.CPUFeatures}, {"licenses", m.Licenses},
	} {
		if err := ascending(list.name, list.items, func(s string) string { return s }); err != nil {
			return err
		}
	}
	if err := ascending("target.components", m.Target.Components,
		func(component Component) string { return component.Name }); err != nil {
		return err
	}
	if err := m.Target.check(); err != nil {
		return err
	}
	if _, empty := m.Annotations[""]; empty {
		return errors.New("annotations: empty key")
	}
	return m.checkBlobs()
}

// check demands that a simulation names no machine, because it runs on every one, and that versions can be compared.
func (t *Target) check() error {
	if t.Simulated() && (len(t.SoC) > 1 || t.OS != "" || t.Arch != "") {
		return fmt.Errorf(
			"target: soc %q is a simulation, which states no other soc, os or arch, got soc %q, os %q, arch %q",
			t.SoC[0], t.SoC, t.OS, t.Arch)
	}
	for _, component := range t.Components {
		if err := checkLabel("target.components", component.Name); err != nil {
			return err
		}
		for _, version := range []string{component.Min, component.Below} {
			if version != "" && !isVersion(version) {
				return fmt.Errorf("target.components: version %q of %q is not dotted numbers", version, component.Name)
			}
		}
	}
	return nil
}

// checkBlobs demands distinct names in order, a plan as entrypoint, and a chunk table that the format can hold.
func (m *Manifest) checkBlobs() error {
	if err := ascending("blobs", m.Blobs, func(blob Blob) string { return blob.Name }); err != nil {
		return err
	}
	// Chunks are counted over all blobs: the table of their digests is read into memory when a bundle is opened.
	var leaves int64
	entry := false
	for i := range m.Blobs {
		blob := &m.Blobs[i]
		if err := blob.check(); err != nil {
			return err
		}
		leaves += chunks(blob.Bytes, m.ChunkBytes)
		if blob.Name == m.Entrypoint {
			if blob.Role != RolePlan {
				return fmt.Errorf("entrypoint %q has role %q, want %q", blob.Name, blob.Role, RolePlan)
			}
			entry = true
		}
	}
	switch {
	case !entry:
		return fmt.Errorf("entrypoint %q is not among the blobs", m.Entrypoint)
	case leaves > maxLeaves: // bounds the bytes too: 2^22 chunks of at most 2^24 bytes are maxBytes
		return fmt.Errorf(
			"blobs of %d chunks together, want at most %d: choose a larger chunk_size than %d, or fewer bytes",
			leaves, maxLeaves, m.ChunkBytes)
	}
	return nil
}

// check demands that a blob can be named, placed and mapped on its own pages.
func (b *Blob) check() error {
	if err := checkLabel("blob", b.Name); err != nil {
		return err
	}
	switch {
	case !b.Role.known():
		return fmt.Errorf("blob %q: unknown role %q", b.Name, b.Role)
	case b.Type == "":
		return fmt.Errorf("blob %q: empty type", b.Name)
	case b.Align&(b.Align-1) != 0:
		return fmt.Errorf("blob %q: alignment %d is not a power of two", b.Name, b.Align)
	case b.Bytes >= pageAlign && b.Align < pageAlign:
		return fmt.Errorf("blob %q: alignment %d, want at least %d for a blob of %d bytes", b.Name, b.Align,
			pageAlign, b.Bytes)
	}
	return nil
}

// checkLabel demands a name that prints as it is, compares bytewise, and could not leave a directory if a tool took it
// for a path.
func checkLabel(what, label string) error {
	for i := range len(label) {
		switch c := label[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == '/', c == '-':
		default:
			return fmt.Errorf("%s: name %q holds %q, want only a-z 0-9 . _ / -", what, label, c)
		}
	}
	for part := range strings.SplitSeq(label, "/") {
		if part == "" || part == "." || part == ".." {
			return fmt.Errorf("%s: name %q has an empty, \".\" or \"..\" segment", what, label)
		}
	}
	return nil
}

// ascending demands non-empty keys in strictly ascending order: one order for each set makes the encoding canonical,
// and binary search possible.
func ascending[T any](what string, list []T, key func(T) string) error {
	for i := range list {
		if key(list[i]) == "" {
			return fmt.Errorf("%s: empty element", what)
		}
		if i > 0 && key(list[i-1]) >= key(list[i]) {
			return fmt.Errorf("%s: %q after %q, want strictly ascending", what, key(list[i]), key(list[i-1]))
		}
	}
	return nil
}

// blob returns the index of the blob called name, and whether there is one.
func (m *Manifest) blob(name string) (int, bool) {
	return slices.BinarySearchFunc(m.Blobs, name,
		func(blob Blob, n string) int { return strings.Compare(blob.Name, n) })
}
