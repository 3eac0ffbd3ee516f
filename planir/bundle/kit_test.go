package bundle

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
)

// kitDir holds the test kit: one failure per file, usable by any verifier. Its README says how
// to read it. HETC_UPDATE=1 rewrites it.
const kitDir = "../../testdata/bundlekit"

// header is the text part of a vector.
type header struct {
	expect   string // "ok", or the step that must refuse
	trust    string // the keyring file, as one line of text with \n for line feeds
	policy   string
	host     string
	digest   string // of the manifest, for "ok"
	released string // over everything a reader may release, for "ok"
	comment  string
}

var headerKeys = []string{"expect", "trust", "policy", "host", "digest", "released", "comment", "compressed"}

func (h *header) field(key string) *string {
	switch key {
	case "expect":
		return &h.expect
	case "trust":
		return &h.trust
	case "policy":
		return &h.policy
	case "host":
		return &h.host
	case "digest":
		return &h.digest
	case "released":
		return &h.released
	case "comment":
		return &h.comment
	}
	return nil
}

func (h *header) text() string {
	var builder strings.Builder
	for _, key := range headerKeys {
		if f := h.field(key); f != nil && *f != "" {
			fmt.Fprintf(&builder, "%s: %s\n", key, *f)
		}
	}
	return builder.String() + "compressed: zlib\n\n"
}

// parseVector splits a vector into its header and the bytes of the bundle.
func parseVector(data []byte) (h header, file []byte, err error) {
	text, body, ok := bytes.Cut(data, []byte("\n\n"))
	if !ok {
		return h, nil, errors.New("no blank line")
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		key, value, _ := strings.Cut(line, ": ")
		if key == "compressed" && value == "zlib" {
			z, err := zlib.NewReader(bytes.NewReader(body))
			if err != nil {
				return h, nil, err
			}
			if file, err = io.ReadAll(z); err != nil {
				return h, nil, err
			}
			continue
		}
		f := h.field(key)
		if f == nil || *f != "" || value == "" {
			return h, nil, fmt.Errorf("bad header line %q", line)
		}
		*f = value
	}
	return h, file, nil
}

// parsePolicy reads "product=... floor=... stored=PRODUCT,GENERATION,VERSION jump=... now=...
// dev=yes runtime=... features=a,b".
func parsePolicy(s string) (p Policy, err error) {
	number := func(v string) int64 {
		n, bad := strconv.ParseInt(v, 10, 64)
		err = errors.Join(err, bad)
		return n
	}
	for field := range strings.FieldsSeq(s) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "product":
			p.Product = value
		case "floor":
			p.SecurityFloor = number(value)
		case "jump":
			p.MaxJump = number(value)
		case "now":
			p.Now = number(value)
		case "dev":
			p.AllowDev = value == "yes"
		case "runtime":
			p.Runtime = value
		case "features":
			p.Features = strings.Split(value, ",")
		case "stored":
			part := strings.Split(value, ",")
			if len(part) != 3 {
				return p, fmt.Errorf("bad policy field %q", field)
			}
			p.Stored = Ratchets{{Product: part[0], Generation: number(part[1]), SecurityVersion: number(part[2])}}
		default:
			return p, fmt.Errorf("unknown policy field %q", field)
		}
	}
	return p, err
}

// parseHost reads "soc=a,b os=... arch=... cpu=a,b ram=... NAME=VERSION[,TOKEN]".
func parseHost(s string) (*Host, error) {
	if s == "" {
		return nil, nil
	}
	h := &Host{Components: map[string]HostComponent{}}
	for field := range strings.FieldsSeq(s) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "soc":
			h.SoC = strings.Split(value, ",")
		case "os":
			h.OS = value
		case "arch":
			h.Arch = value
		case "cpu":
			h.CPUFeatures = strings.Split(value, ",")
		case "ram":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return nil, err
			}
			h.RAMBytes = n
		default:
			if !strings.Contains(key, "/") {
				return nil, fmt.Errorf("unknown host field %q", field)
			}
			version, token, hasToken := strings.Cut(value, ",")
			c := HostComponent{Version: version}
			if hasToken {
				c.Accepts = func(got string) error {
					if got != token {
						return fmt.Errorf("token %q, want %q", got, token)
					}
					return nil
				}
			}
			h.Components[key] = c
		}
	}
	return h, nil
}

// judge runs a vector in one mode and returns "ok" or the step that refused, with what was
// released.
func judgeVector(t *testing.T, h header, path string, mode Mode) (verdict, digest, released string) {
	policy, err := parsePolicy(h.policy)
	if err != nil {
		t.Fatal(err)
	}
	host, err := parseHost(h.host)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := ParseTrust([]byte(strings.ReplaceAll(h.trust, `\n`, "\n")), "kit")
	if err != nil {
		return string(StepOf(err)), "", ""
	}
	opened, err := openAll(path, Options{Trust: trust, Policy: policy, Host: host, Mode: mode})
	if err != nil {
		if class := diag.ClassOf(err); class != diag.ClassVerify {
			t.Errorf("mode %d: refused with class %d, want ClassVerify: %v", mode, class, err)
		}
		if StepOf(err) == "" {
			t.Errorf("mode %d: refused without a step: %v", mode, err)
		}
		return string(StepOf(err)), "", ""
	}
	defer opened.Close()
	sum := sha256.New()
	for _, blob := range opened.Manifest().Blobs {
		data, err := opened.Bytes(blob.Name)
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(append([]byte(blob.Name), 0))
		_ = binary.Write(sum, binary.LittleEndian, int64(len(data)))
		sum.Write(data)
	}
	return "ok", opened.Digest().String(), hex.EncodeToString(sum.Sum(nil))
}

// vectorHeader fills in what a vector is expected to give.
func vectorHeader(v *vector, given *recipe, file []byte) header {
	h := header{expect: string(v.expect), policy: v.policy, host: v.host, comment: v.comment,
		trust: strings.ReplaceAll(string(given.keyring()), "\n", `\n`)}
	if v.expect == "" {
		h.expect = "ok"
		manifest := given.manifest
		env, err := decodeEnvelope(file[headerBytes : headerBytes+binary.LittleEndian.Uint64(file[16:])])
		if err != nil {
			panic(err)
		}
		payload := must(env.open())
		d := sha256.Sum256(payload)
		h.digest = hex.EncodeToString(d[:])
		sum := sha256.New()
		for _, blob := range manifest.Blobs {
			sum.Write(append([]byte(blob.Name), 0))
			_ = binary.Write(sum, binary.LittleEndian, blob.Bytes)
			sum.Write(given.contents[blob.Name])
		}
		h.released = hex.EncodeToString(sum.Sum(nil))
	}
	return h
}

func (v *vector) make(t *testing.T) (given *recipe, file []byte) {
	defer func() {
		if p := recover(); p != nil {
			t.Fatalf("vector %q: %v", v.name, p)
		}
	}()
	given = baseRecipe()
	v.edit(given)
	return given, given.build()
}

// TestKitIsCurrent compares the kit on disk with what the table in vectors_test.go makes.
func TestKitIsCurrent(t *testing.T) {
	update := os.Getenv("HETC_UPDATE") == "1"
	names := map[string]bool{"README.md": true}
	for _, v := range vectors() {
		if names[v.name] {
			t.Fatalf("two vectors called %q", v.name)
		}
		names[v.name] = true
		r, file := v.make(t)
		header := vectorHeader(&v, r, file)
		path := filepath.Join(kitDir, v.name)
		old, err := os.ReadFile(path)
		if err == nil {
			// The compressed bytes may differ between releases of the compressor.
			if oh, of, err := parseVector(old); err == nil && oh == header && bytes.Equal(of, file) {
				continue
			}
		}
		if !update {
			t.Errorf("vector %q is not current; HETC_UPDATE=1 rewrites it", v.name)
			continue
		}
		var z bytes.Buffer
		z.WriteString(header.text())
		w := must(zlib.NewWriterLevel(&z, zlib.BestCompression))
		w.Write(file)
		w.Close()
		if err := os.WriteFile(path, z.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(kitDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if names[entry.Name()] {
			continue
		}
		if !update {
			t.Errorf("%q in the kit belongs to no vector", entry.Name())
		} else if err := os.Remove(filepath.Join(kitDir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKit runs every vector from the files, as another implementation would.
func TestKit(t *testing.T) {
	require.Slow(t)
	entries, err := os.ReadDir(kitDir)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	var bytesTotal int64
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		bytesTotal += info.Size()
		if entry.Name() == "README.md" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(kitDir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		header, file, err := parseVector(data)
		if err != nil {
			t.Fatalf("%s: %v", entry.Name(), err)
		}
		count[header.expect]++
		t.Run(entry.Name(), func(t *testing.T) {
			path := writeTemp(t, file)
			for _, mode := range []Mode{Lazy, Eager, Copy} {
				verdict, digest, released := judgeVector(t, header, path, mode)
				if verdict != header.expect || digest != header.digest || released != header.released {
					t.Errorf("mode %d: got %s %s %s, want %s %s %s", mode, verdict, digest, released, header.expect,
						header.digest, header.released)
				}
			}
		})
	}
	if total := len(entries) - 1; total < 150 {
		t.Errorf("only %d vectors", total)
	}
	if bytesTotal > 2<<20 {
		t.Errorf("the kit has %d bytes, want at most 2 MiB", bytesTotal)
	}
	for _, s := range []string{
		"ok", "keyring", "header", "envelope", "type", "encoding", "signature", "manifest", "compat", "policy",
		"layout", "table", "code", "weights",
	} {
		if count[s] == 0 {
			t.Errorf("no vector expects %q", s)
		}
	}
	t.Log(count)
}

// The digest of a written file is frozen: a change means that the format changed and that
// bundles in the field are no longer read.
func TestFormatIsFrozen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.hetb")
	m := Manifest{Product: "frozen", Entrypoint: "plan", SecurityVersion: 1, ChunkBytes: 1 << 20}
	_, err := Write(context.Background(), path, m, []Source{
		{Name: "plan", Role: RolePlan, Bytes: 11, Content: strings.NewReader("hello world")},
		{Name: "weights", Role: RoleWeights, Bytes: 3 << 20, Content: bytes.NewReader(pattern(9, 3<<20))},
	}, keyA.signer())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const want = "a5bba4603cb7afd3359b55f07397afc1771aa3070bd0b3aed834d4db478ccca5"
	if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != want {
		t.Errorf("file digest %x, want %s", got, want)
	}
}
