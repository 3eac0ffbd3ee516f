package bundle

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// vector is one file of the kit: baseRecipe with one thing changed.
type vector struct {
	name    string
	expect  Step // "": accepted
	comment string
	policy  string
	host    string
	edit    func(r *recipe)
}

// replace edits a text and demands that the old part is there.
func replace(old, new string) func(string) string {
	return func(s string) string {
		if !strings.Contains(s, old) {
			panic(fmt.Sprintf("%q not in %q", old, s))
		}
		return strings.Replace(s, old, new, 1)
	}
}

func vectors() []vector {
	return slices.Concat(accepted(), headerVectors(), envelopeVectors(), signatureVectors(), keyringVectors(),
		manifestVectors(), policyVectors(), layoutVectors(), contentVectors())
}

func accepted() []vector {
	nothing := func(*recipe) {}
	return []vector{
		{name: "ok-ed25519", comment: "the base that all others change in one place", edit: nothing},
		{name: "ok-p256", edit: func(r *recipe) { r.signers = []testKey{keyB} }},
		{name: "ok-two-of-two", edit: func(r *recipe) { r.signers = []testKey{keyA, keyB} }},
		{name: "ok-one-of-two", comment: "threshold 1, two keys trusted, one signature", edit: func(r *recipe) {
			r.trust = must(ring(1, keyA, keyB).Encode())
		}},
		{name: "ok-unknown-second-signer", comment: "a signature by a key that is not trusted counts for nothing",
			edit: func(given *recipe) {
				given.signers = []testKey{keyA, keyC}
				given.trust = must(ring(1, keyA).Encode())
			}},
		{name: "ok-pub-file", comment: "a .pub is a keyring of one key",
			edit: func(r *recipe) { r.trust = keyA.PEM() }},
		{name: "ok-keyring-without-line-feed",
			edit: func(r *recipe) { r.trust = bytes.TrimSuffix(must(ring(1, keyA).Encode()), []byte("\n")) }},
		{name: "ok-p256-high-s", comment: "(r, n-s) is the same signature; signature bytes are no identity",
			edit: func(given *recipe) {
				given.signers = []testKey{keyB}
				given.sigs = ecdsaEdit(func(x, s *big.Int) (*big.Int, *big.Int) {
					return x,
						new(big.Int).Sub(elliptic.P256().Params().N, s)
				})
			}},
		{name: "ok-dev-key-allowed", policy: "dev=yes", edit: func(r *recipe) { r.signers = []testKey{keyDev} }},
		{name: "ok-one-blob", edit: func(given *recipe) {
			given.manifest.Blobs = nil
			given.add("plan", RolePlan, []byte("p"))
		}},
		{name: "ok-empty-blobs", edit: func(given *recipe) {
			given.manifest.Blobs = nil
			given.add("plan", RolePlan, nil)
			given.add("weights", RoleWeights, nil)
		}},
		{name: "ok-chunk-boundaries", edit: func(given *recipe) {
			for i, n := range []int{1, testChunk - 1, testChunk, testChunk + 1} {
				given.add(fmt.Sprintf("edge/%d", i), RoleWeights, pattern(byte(10+i), n))
			}
		}},
		{name: "ok-large-alignment", edit: func(given *recipe) {
			given.add("weights/zz", RoleWeights, pattern(7, 70000))
			given.manifest.Blobs[len(given.manifest.Blobs)-1].Align = 1 << 20
		}},
		{name: "ok-many-blobs", comment: "the manifest outgrows the floor of the table's offset",
			edit: func(given *recipe) {
				for i := range 900 {
					given.add(fmt.Sprintf("many/%04d", i), RoleWeights, []byte{byte(i), byte(i >> 8)})
				}
			}},
		{name: "ok-every-role", edit: func(given *recipe) {
			for i, role := range []Role{
				RoleGPUKernel, roleRuntime, RoleTokenizer, RoleConfig, RoleReference, RoleReport, RoleSelfTest,
			} {
				given.add("role/"+string(role), role, pattern(byte(20+i), 100))
			}
		}},
		{name: "ok-every-field", policy: "runtime=1.2.3 now=1700000001",
			host: "soc=x1,x2 os=linux arch=arm64 cpu=asimd,i8mm ram=8000000000 driver/npu=2.30.1 " +
				"library/onnxruntime=1.22.0,tok",
			edit: fullManifest},
		{name: "ok-device-names-are-labels", edit: func(r *recipe) { r.add("con/nul.aux", RoleReport, []byte("x")) }},
		{name: "ok-security-version-equal", policy: "stored=com.example.test,1,4", edit: nothing},
		{name: "ok-security-version-at-jump", policy: "floor=1 jump=3", edit: nothing},
		{name: "ok-ratchet-of-other-product", policy: "stored=com.example.other,1,9", edit: nothing},
		{name: "ok-new-generation-starts-new-count", policy: "stored=com.example.test,1,900",
			edit: func(given *recipe) {
				given.manifest.KeyringGeneration = 2
				keyring := ring(1, keyA)
				keyring.Generation = 2
				given.trust = must(keyring.Encode())
			}},
		{name: "ok-expired-without-clock", comment: "expiry needs a clock that can be trusted",
			edit: func(r *recipe) { r.manifest.NotAfter = 1600000000 }},
		{name: "ok-product-demanded", policy: "product=com.example.test", edit: nothing},
	}
}

// fullManifest fills in every field.
func fullManifest(r *recipe) {
	manifest := &r.manifest
	manifest.IssuedAt, manifest.NotAfter = 1700000000, 1800000000
	manifest.Toolchain = Toolchain{Hetc: "0.1.0", Plan: "hetc.plan/1", InputsLock: sha256.Sum256([]byte("inputs"))}
	manifest.Requires.Runtime = "1.2"
	manifest.Target = Target{SoC: []string{"x0", "x1"}, OS: "linux", Arch: "arm64",
		CPUFeatures: []string{"asimd", "i8mm"}, RAMBytes: 6 << 30,
		Components: []Component{
			{Name: "driver/npu", Min: "2.30", Below: "2.31"},
			{Name: "library/onnxruntime", Exact: "1.22.0", Token: "tok"},
		}}
	manifest.Budget = Budget{HostBytes: 900000000, DeviceBytes: 3200000000}
	manifest.Licenses = []string{"Apache-2.0", "MIT"}
	manifest.Annotations = map[string]string{"ci": "run 4711", "note": "~ all printable: {}[],:'"}
}

func headerVectors() []vector {
	var out []vector
	set := func(name string, edit func(f []byte)) {
		out = append(out, vector{name: "header-" + name, expect: stepHeader, edit: func(r *recipe) {
			r.file = func(f []byte, _ layout) []byte { edit(f); return f }
		}})
	}
	cut := func(name string, edit func(f []byte) []byte) {
		out = append(out, vector{name: "header-" + name, expect: stepHeader, edit: func(r *recipe) {
			r.file = func(f []byte, _ layout) []byte { return edit(f) }
		}})
	}
	for i := range 8 {
		set(fmt.Sprintf("magic-byte-%d", i), func(f []byte) { f[i] ^= 0x20 })
	}
	for _, v := range []uint32{0, 2, 1<<32 - 1} {
		set(fmt.Sprintf("version-%d", v), func(f []byte) { binary.LittleEndian.PutUint32(f[8:], v) })
	}
	set("flags", func(f []byte) { f[12] = 1 })
	set("flags-high", func(f []byte) { f[15] = 0x80 })
	set("reserved-first", func(f []byte) { f[24] = 1 })
	set("reserved-last", func(f []byte) { f[63] = 1 })
	for _, e := range []uint64{0, 16<<20 + 1, 1 << 22, 1 << 63, 1<<64 - 1} {
		set(fmt.Sprintf("envelope-length-%d", e), func(f []byte) { binary.LittleEndian.PutUint64(f[16:], e) })
	}
	for _, n := range []int{0, 1, 63, 64} {
		cut(fmt.Sprintf("file-of-%d-bytes", n), func(f []byte) []byte { return f[:n] })
	}
	cut("text-mode-transfer", func(f []byte) []byte { return bytes.ReplaceAll(f, []byte("\r\n"), []byte("\n")) })
	cut("seven-bit-transfer", func(data []byte) []byte {
		for i := range data {
			data[i] &= 0x7f
		}
		return data
	})
	cut("shifted-by-one", func(f []byte) []byte { return append([]byte{0}, f...) })
	return out
}

func envelopeVectors() []vector {
	var out []vector
	text := func(step Step, name string, edit func(string) string) {
		out = append(out, vector{name: string(step) + "-" + name, expect: step,
			edit: func(r *recipe) { r.envelope = edit }})
	}
	env := func(name string, edit func(string) string) { text(stepEnvelope, name, edit) }
	env("space", replace(`,"payloadType"`, `, "payloadType"`))
	env("trailing-line-feed", func(s string) string { return s + "\n" })
	env("trailing-byte", func(s string) string { return s + "x" })
	env("second-document", func(s string) string { return s + s })
	env("bom", func(s string) string { return "\xef\xbb\xbf" + s })
	env("key-order", func(s string) string {
		return replace(`{"payload":`, `{"payloadType":"`+payloadType+`","payload":`)(
			replace(`"payloadType":"`+payloadType+`",`, "")(s))
	})
	env("duplicate-key", replace(`"signatures":`, `"payloadType":"`+payloadType+`","signatures":`))
	env("extra-key", replace(`]}`, `],"x":1}`))
	env("case-variant", replace(`"payloadType"`, `"payloadtype"`))
	env("escaped-key", replace(`"payload":`, `"\u0070ayload":`))
	env("escaped-slash", replace(`application/`, `application\/`))
	env("missing-type", replace(`"payloadType":"`+payloadType+`",`, ""))
	env("missing-signatures", replace(`,"signatures"`, `,"signature"`))
	env("null-signatures", func(s string) string { return s[:strings.Index(s, "[")] + "null}" })
	env("number-for-payload", func(s string) string { return `{"payload":1` + s[strings.Index(s, `,"payloadType"`):] })
	env("deep-arrays", func(s string) string { return strings.Repeat("[", 100000) })
	env("empty-object", func(string) string { return "{}" })
	env("cut", func(s string) string { return s[:len(s)-2] })
	env("upper-case-keyid", func(s string) string {
		i := strings.Index(s, `"keyid":"`) + 9
		return s[:i] + strings.ToUpper(s[i:i+64]) + s[i+64:]
	})
	env("short-keyid", func(s string) string {
		i := strings.Index(s, `"keyid":"`) + 9
		return s[:i] + s[i+2:]
	})
	env("control-character", replace(`"sig":"`, "\"sig\":\"\x7f"))
	env("null-byte", replace(`"sig":"`, "\"sig\":\"\x00"))
	env("long-signature", replace(`"sig":"`, `"sig":"`+strings.Repeat("A", 400)))
	env("unsorted-signatures", nil)
	out[len(out)-1].edit = func(given *recipe) {
		given.signers = []testKey{keyA, keyB}
		given.sigs = func(s []signature) []signature { slices.Reverse(s); return s }
	}
	env("repeated-signature", nil)
	out[len(out)-1].comment = "one key cannot sign twice to reach the threshold of 2"
	out[len(out)-1].edit = func(given *recipe) {
		given.trust = must(ring(2, keyA, keyB).Encode())
		given.sigs = func(s []signature) []signature { return append(s, s...) }
	}
	env("nine-signatures", nil)
	out[len(out)-1].edit = func(given *recipe) {
		given.trust = must(ring(1, keyA).Encode())
		for i := range 8 {
			given.signers = append(given.signers, edKey(fmt.Sprint(i), false))
		}
	}

	enc := func(name string, edit func(string) string) { text(stepEncoding, name, edit) }
	payloadEdit := func(f func(string) string) func(string) string {
		return func(s string) string {
			i, j := len(`{"payload":"`), strings.Index(s, `","payloadType"`)
			return s[:i] + f(s[i:j]) + s[j:]
		}
	}
	enc("unpadded", nil)
	out[len(out)-1].edit = func(given *recipe) {
		given.manifest.Version = "1.00" // makes the payload's length one that needs padding, see below
		for base64Padding(given) == 0 {
			given.manifest.Version += "0"
		}
		given.envelope = payloadEdit(func(s string) string { return strings.TrimRight(s, "=") })
	}
	enc("loose-trailing-bits", nil)
	out[len(out)-1].edit = func(given *recipe) {
		for base64Padding(given) != 2 {
			given.manifest.Version += "0"
		}
		given.envelope = payloadEdit(func(s string) string {
			const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
			last := strings.IndexByte(alphabet, s[len(s)-3])
			return s[:len(s)-3] + string(alphabet[last|1]) + "=="
		})
	}
	enc("url-safe-signature", func(s string) string {
		i := strings.Index(s, `"sig":"`)
		head, tail := s[:i], s[i:]
		if !strings.ContainsAny(tail, "+/") {
			panic("signature without + or /")
		}
		return head + strings.NewReplacer("+", "-", "/", "_").Replace(tail)
	})
	enc("url-safe-payload", payloadEdit(func(s string) string { return "-" + s[1:] }))
	enc("padding-inside", payloadEdit(func(s string) string { return s[:4] + "====" + s[4:] }))
	enc("space-inside", payloadEdit(func(s string) string { return s[:4] + " " + s[4:] }))

	kind := func(name, k string) {
		out = append(out, vector{name: "type-" + name, expect: stepType, comment: "validly signed as that type",
			edit: func(r *recipe) { r.kind = k }})
	}
	kind("in-toto", "application/vnd.in-toto+json")
	kind("keyring", "application/vnd.hetc.keyring.v1+json")
	kind("upper-case", strings.ToUpper(payloadType))
	kind("prefix", payloadType[:len(payloadType)-1])
	kind("suffix", payloadType+"x")
	kind("other-version", strings.Replace(payloadType, "v1", "v2", 1))
	kind("empty", "")
	text(stepType, "relabelled", replace(payloadType, "application/vnd.in-toto+json"))
	return out
}

// base64Padding returns the number of padding characters of the payload.
func base64Padding(given *recipe) int {
	n := 0
	old := given.payload
	given.payload = func(s string) string { n = (3 - len(s)%3) % 3; return s + " " }
	given.build()
	given.payload = old
	return n
}

// ecdsaEdit changes the numbers of the first signature, which must be by a P-256 key.
func ecdsaEdit(edit func(r, s *big.Int) (*big.Int, *big.Int)) func([]signature) []signature {
	return rawSig(func(der []byte) []byte {
		var test struct{ R, S *big.Int }
		if _, err := asn1.Unmarshal(der, &test); err != nil {
			panic(err)
		}
		test.R, test.S = edit(test.R, test.S)
		return must(asn1.Marshal(test))
	})
}

func rawSig(edit func([]byte) []byte) func([]signature) []signature {
	return func(sigs []signature) []signature {
		sigs[0].sig = base64.StdEncoding.EncodeToString(edit(must(base64.StdEncoding.DecodeString(sigs[0].sig))))
		return sigs
	}
}

func signatureVectors() []vector {
	var out []vector
	add := func(name string, edit func(r *recipe)) {
		out = append(out, vector{name: "signature-" + name, expect: StepSignature, edit: edit})
	}
	raw := func(name string, key testKey, edit func([]byte) []byte) {
		add(name, func(given *recipe) {
			given.signers = []testKey{key}
			given.sigs = rawSig(edit)
		})
	}
	add("none", func(r *recipe) { r.sigs = func([]signature) []signature { return nil } })
	raw("empty", keyA, func([]byte) []byte { return nil })
	add("unknown-key", func(given *recipe) {
		given.signers = []testKey{keyC}
		given.trust = must(ring(1, keyA).Encode())
	})
	add("wrong-key-under-trusted-id", func(given *recipe) {
		given.trust = must(ring(1, keyA).Encode())
		given.signers = []testKey{keyC}
		given.sigs = func(s []signature) []signature { s[0].keyID = sha256.Sum256(keyA.DER); return s }
	})
	add("one-of-two", func(r *recipe) { r.trust = must(ring(2, keyA, keyB).Encode()) })
	add("second-is-wrong", func(given *recipe) {
		given.signers = []testKey{keyA, keyB}
		given.trust = must(ring(1, keyA, keyB).Encode())
		given.sigs = rawSig(func(s []byte) []byte { s[len(s)-1] ^= 1; return s })
	})
	out[len(out)-1].comment = "a trusted key's wrong signature is a refusal even where another suffices"
	add("dev-key", func(r *recipe) { r.signers = []testKey{keyDev} })
	add("dev-key-does-not-count", func(given *recipe) {
		given.signers = []testKey{keyA, keyDev}
		given.trust = must(ring(2, keyA, keyDev).Encode())
	})
	add("dev-pub-file", func(r *recipe) { r.signers = []testKey{keyDev}; r.trust = keyDev.PEM() })
	add("without-pae", func(r *recipe) { r.message = func(p []byte) []byte { return p } })
	add("pae-of-other-type",
		func(r *recipe) { r.message = func(p []byte) []byte { return pae("application/vnd.in-toto+json", p) } })
	add("pae-shifted-length", func(r *recipe) {
		r.message = func(p []byte) []byte {
			return bytes.Replace(pae(payloadType, p), fmt.Appendf(nil, " %d ", len(p)),
				fmt.Appendf(nil, " %d ", len(p)+1), 1)
		}
	})
	add("over-other-message",
		func(r *recipe) { r.message = func([]byte) []byte { return pae(payloadType, []byte("x")) } })
	add("payload-changed", func(r *recipe) {
		r.message = func(p []byte) []byte {
			return pae(payloadType, bytes.Replace(p, []byte(`"security_version":4`), []byte(`"security_version":3`), 1))
		}
	})
	raw("truncated", keyA, func(s []byte) []byte { return s[:63] })
	raw("extended", keyA, func(s []byte) []byte { return append(s, 0) })
	raw("flipped-first", keyA, func(s []byte) []byte { s[0] ^= 1; return s })
	raw("flipped-last", keyA, func(s []byte) []byte { s[63] ^= 1; return s })
	raw("all-zero", keyA, func([]byte) []byte { return make([]byte, 64) })
	raw("ed25519-s-plus-l", keyA, func(data []byte) []byte {
		l, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989",
			10)
		slices.Reverse(data[32:])
		v := new(big.Int).SetBytes(data[32:])
		v.Add(v, l).FillBytes(data[32:])
		slices.Reverse(data[32:])
		return data
	})
	raw("ed25519-r-not-canonical", keyA, func(data []byte) []byte {
		copy(data, append(bytes.Repeat([]byte{0xff}, 31), 0x7f))
		return data
	})
	raw("p256-raw-not-der", keyB, func(data []byte) []byte {
		var test struct{ R, S *big.Int }
		if _, err := asn1.Unmarshal(data, &test); err != nil {
			panic(err)
		}
		return append(test.R.FillBytes(make([]byte, 32)), test.S.FillBytes(make([]byte, 32))...)
	})
	raw("p256-der-trailing", keyB, func(s []byte) []byte { return append(s, 0) })
	raw("p256-der-long-length", keyB, func(s []byte) []byte { return append([]byte{0x30, 0x81}, s[1:]...) })
	raw("p256-der-padded-integer", keyB, func(data []byte) []byte {
		n := int(data[3])
		data = slices.Insert(data, 4, 0)
		if data[5] >= 0x80 {
			panic("padding would be needed")
		}
		data[3], data[1] = byte(n+1), data[1]+1
		return data
	})
	for name, f := range map[string]func(r, s *big.Int) (*big.Int, *big.Int){
		"p256-negative": func(r, s *big.Int) (*big.Int, *big.Int) { return new(big.Int).Neg(r), s },
		"p256-r-zero":   func(r, s *big.Int) (*big.Int, *big.Int) { return new(big.Int), s },
		"p256-s-zero":   func(r, s *big.Int) (*big.Int, *big.Int) { return r, new(big.Int) },
		"p256-r-plus-n": func(r, s *big.Int) (*big.Int,
			*big.Int) {
			return new(big.Int).Add(r, elliptic.P256().Params().N), s
		},
		"p256-both-swap": func(r, s *big.Int) (*big.Int, *big.Int) { return s, r },
	} {
		add(name, func(given *recipe) {
			given.signers = []testKey{keyB}
			given.sigs = ecdsaEdit(f)
		})
	}
	add("ed25519-for-p256-key", func(given *recipe) {
		given.trust = must(ring(1, keyB).Encode())
		given.sigs = func(s []signature) []signature { s[0].keyID = sha256.Sum256(keyB.DER); return s }
	})
	slices.SortFunc(out, func(a, b vector) int { return strings.Compare(a.name, b.name) })
	return out
}

func keyringVectors() []vector {
	var out []vector
	add := func(name, comment string, trust []byte) {
		out = append(out, vector{name: "keyring-" + name, expect: stepKeyring, comment: comment,
			edit: func(r *recipe) { r.trust = trust }})
	}
	good := string(must(ring(1, keyA).Encode()))
	two := string(must(ring(1, keyA, keyC).Encode()))
	text := func(name, comment, old, new string) { add(name, comment, []byte(replace(old, new)(good))) }
	entry := good[strings.Index(good, "[")+1 : strings.LastIndex(good, "]")]
	add("same-key-twice", "threshold 2 would be met by one key",
		[]byte(`{"schema":"hetc.keyring/1","generation":1,"threshold":2,"keys":[`+entry+","+entry+"]}"))
	first := strings.Index(two, `{"keyid"`)
	second := strings.LastIndex(two, `{"keyid"`)
	end := strings.LastIndex(two, "]")
	add("unsorted", "", []byte(two[:first]+two[second:end]+","+two[first:second-1]+two[end:]))
	text("threshold-zero", "", `"threshold":1`, `"threshold":0`)
	text("threshold-above-keys", "", `"threshold":1`, `"threshold":2`)
	text("generation-zero", "", `"generation":1`, `"generation":0`)
	text("unknown-key-name", "", `"generation"`, `"Generation"`)
	text("other-schema", "", `hetc.keyring/1`, `hetc.keyring/2`)
	text("space", "", `,"threshold"`, `, "threshold"`)
	text("dev-false", "an empty optional member is left out", `,"public"`, `,"dev":false,"public"`)
	text("empty-name", "", `"name":"a"`, `"name":""`)
	text("algorithm-swapped", "", `"algorithm":"ed25519"`, `"algorithm":"p256"`)
	text("algorithm-unknown", "", `"algorithm":"ed25519"`, `"algorithm":"none"`)
	add("wrong-keyid", "", []byte(strings.Replace(good, keyA.ID(), keyC.ID(), 1)))
	add("no-key", "", []byte(`{"schema":"hetc.keyring/1","generation":1,"threshold":1,"keys":[]}`))
	add("empty", "", []byte(" "))
	add("trailing", "", []byte(good+"\n"))

	// A key that NewKey would refuse, written as a keyring would list it.
	hostile := func(name, comment string, der []byte, algorithm string) {
		sum := sha256.Sum256(der)
		add(name, comment, fmt.Appendf(nil,
			`{"schema":"hetc.keyring/1","generation":1,"threshold":1,"keys":[{"keyid":"%x","algorithm":"%s","public":"%s"}]}`,
			sum, algorithm, base64.StdEncoding.EncodeToString(der)))
	}
	prefix := keyA.DER[:len(keyA.DER)-32]
	for i, y := range smallOrder {
		hostile(fmt.Sprintf("small-order-%d", i), "one signature would verify every message",
			slices.Concat(prefix, y[:]), "ed25519")
		y[31] |= 0x80
		hostile(fmt.Sprintf("small-order-%d-sign", i), "one signature would verify every message",
			slices.Concat(prefix, y[:]), "ed25519")
	}
	high := append(bytes.Repeat([]byte{0xff}, 31), 0x7f)
	high[0] = 0xf0
	hostile("not-canonical-point", "y >= 2^255-19 is a second name of a small y", slices.Concat(prefix, high),
		"ed25519")
	seed := sha256.Sum256([]byte("p384"))
	p384 := must(ecdsa.ParseRawPrivateKey(elliptic.P384(), append(make([]byte, 16), seed[:]...)))
	hostile("p384", "", must(x509.MarshalPKIXPublicKey(&p384.PublicKey)), "p256")
	hostile("trailing-der", "", append(bytes.Clone(keyA.DER), 0), "ed25519")
	shifted := edKey("e", false).DER // one unused bit in its BIT STRING: another encoding of the same key
	for i := 1; shifted[len(shifted)-32] >= 0x80; i++ {
		shifted = edKey(fmt.Sprint("e", i), false).DER
	}
	bits := new(big.Int).SetBytes(shifted[len(shifted)-32:])
	bits.Lsh(bits, 1).FillBytes(shifted[len(shifted)-32:])
	shifted[len(shifted)-33] = 1
	hostile("not-canonical-der", "a second encoding would be a second key ID", shifted, "ed25519")
	hostile("not-der", "", []byte("x"), "ed25519")
	add("pem-small-order", "", slices.Concat((&Key{DER: slices.Concat(prefix, smallOrder[1][:])}).PEM()))
	add("pem-of-private-type", "", bytes.ReplaceAll(keyA.PEM(), []byte("PUBLIC"), []byte("PRIVATE")))
	add("pem-with-text", "", append(keyA.PEM(), "x\n"...))
	add("pem-two-keys", "", append(keyA.PEM(), keyC.PEM()...))
	return out
}

func manifestVectors() []vector {
	var out []vector
	add := func(name string, edit func(r *recipe)) *vector {
		out = append(out, vector{name: "manifest-" + name, expect: stepManifest, edit: edit})
		return &out[len(out)-1]
	}
	text := func(name, old, new string) { add(name, func(r *recipe) { r.payload = replace(old, new) }) }
	// The fifteen variants that generic JSON readers disagree about, and more of the kind.
	text("duplicate-key", `"security_version":4`, `"security_version":3,"security_version":4`)
	text("case-variant", `"security_version"`, `"Security_Version"`)
	text("long-s", `"security_version"`, "\"\u017fecurity_version\"")
	text("unknown-key", `"target":`, `"targets":1,"target":`)
	add("second-document", func(r *recipe) { r.payload = func(s string) string { return s + s } })
	add("trailing-line-feed", func(r *recipe) { r.payload = func(s string) string { return s + "\n" } })
	add("bom", func(r *recipe) { r.payload = func(s string) string { return "\xef\xbb\xbf" + s } })
	add("empty-payload", func(r *recipe) { r.payload = func(s string) string { return "" } })
	add("not-json", func(r *recipe) { r.payload = func(s string) string { return "plan" } })
	text("space", `,"target"`, ` ,"target"`)
	text("invalid-utf8", `"version":"1.0"`, "\"version\":\"1\xff\"")
	text("valid-utf8", `"version":"1.0"`, `"version":"1é"`)
	text("escaped-name", `"name":"plan"`, `"name":"pl\u0061n"`)
	text("escaped-quote", `"version":"1.0"`, `"version":"1\"0"`)
	text("null-byte-in-name", `"name":"plan"`, "\"name\":\"pl\x00n\"")
	text("duplicate-blobs-array", `"blobs":`, `"blobs":[],"blobs":`)
	text("missing-field", `"product":"com.example.test",`, ``)
	text("null-list", `"blobs":[`, `"blobs":null,[`)
	text("negative-size", `"size":300`, `"size":-300`)
	text("fraction", `"size":300`, `"size":300.0`)
	text("exponent", `"size":300`, `"size":3e2`)
	text("leading-zero", `"size":300`, `"size":0300`)
	text("plus-sign", `"size":300`, `"size":+300`)
	text("string-for-number", `"size":300`, `"size":"300"`)
	text("size-2-to-53", `"size":300`, `"size":9007199254740992`)
	text("size-2-to-63", `"size":300`, `"size":9223372036854775808`)
	text("size-2-to-64", `"size":300`, `"size":18446744073709551916`)
	text("size-over-limit", `"size":300`, `"size":70368744177665`)
	text("order-of-keys", `"version":"1.0","security_version":4`, `"security_version":4,"version":"1.0"`)
	text("empty-optional-string", `"version":"1.0"`, `"version":""`)
	text("empty-optional-object", `"target":{}`, `"target":{"components":[]}`)
	text("empty-requires", `"requires":{"features":["chunks/1"]}`, `"requires":{}`)
	text("zero-optional-number", `"requires":`, `"issued_at":0,"requires":`)
	text("other-schema", `"hetc.bundle/1"`, `"hetc.bundle/2"`)
	text("no-blobs", `"blobs":[`, `"blobs":[],"x":[`)
	text("missing-entrypoint", `"entrypoint":"plan"`, `"entrypoint":"plan2"`)
	text("entrypoint-of-other-role", `"entrypoint":"plan"`, `"entrypoint":"weights/000"`)
	text("unknown-role", `"role":"npu-graph"`, `"role":"kernel"`)
	text("role-case", `"role":"npu-graph"`, `"role":"NPU-graph"`)
	text("empty-type", `"type":"application/octet-stream"`, `"type":""`)
	for _, a := range []string{"0", "3", "32", "96", "4194304", "9223372036854775808"} {
		text("align-"+a, `"align":64`, `"align":`+a)
	}
	add("align-too-small-for-size", func(given *recipe) {
		given.add("weights/zz", RoleWeights, pattern(1, pageAlign))
		given.manifest.Blobs[len(given.manifest.Blobs)-1].Align = 4096
	})
	text("chunk-not-a-power-of-two", `"chunk_size":4096`, `"chunk_size":5000`)
	text("chunk-too-small", `"chunk_size":4096`, `"chunk_size":2048`)
	text("chunk-too-large", `"chunk_size":4096`, `"chunk_size":33554432`)
	for name, label := range map[string]string{
		"dot-dot": "../plan", "dot-dot-inside": "a/../plan", "dot": "./plan", "absolute": "/plan",
		"trailing-slash": "plan/",
		"empty-segment":  "a//plan", "upper-case": "Plan", "space": "pl an", "colon": "c:plan", "empty": "",
		"long": strings.Repeat("a", 201),
	} {
		text("name-"+name, `"name":"plan"`, `"name":"`+label+`"`)
	}
	text("name-backslash", `"name":"plan"`, `"name":"a\\plan"`)
	text("names-equal", `"name":"graph/npu"`, `"name":"plan"`)
	text("names-unsorted", `"name":"graph/npu"`, `"name":"zgraph"`)
	digest := func(name string, edit func(string) string) {
		add(name, func(r *recipe) {
			r.payload = func(s string) string {
				i := strings.Index(s, `"sha256":"`) + 10
				return s[:i] + edit(s[i:i+64]) + s[i+64:]
			}
		})
	}
	digest("upper-case-hex", strings.ToUpper)
	digest("short-hex", func(s string) string { return s[2:] })
	digest("long-hex", func(s string) string { return s + "00" })
	digest("bad-hex", func(s string) string { return "g" + s[1:] })
	text("generation-zero", `"keyring_generation":1`, `"keyring_generation":0`)
	text("security-version-over-limit", `"security_version":4`, `"security_version":2147483648`)
	text("product-empty", `"product":"com.example.test"`, `"product":""`)
	text("product-upper-case", `"product":"com.example.test"`, `"product":"com.Example.test"`)
	text("features-unsorted", `["chunks/1"]`, `["chunks/1","a"]`)
	text("features-repeated", `["chunks/1"]`, `["chunks/1","chunks/1"]`)
	full := func(name, old, new string) {
		add(name, func(r *recipe) { fullManifest(r); r.payload = replace(old, new) })
	}
	full("expires-before-issued", `"not_after":1800000000`, `"not_after":1600000000`)
	full("runtime-not-a-version", `"runtime":"1.2"`, `"runtime":"1.x"`)
	full("component-version-not-a-version", `"min":"2.30"`, `"min":"2..30"`)
	full("component-version-leading-zero", `"min":"2.30"`, `"min":"02.30"`)
	full("components-unsorted", `"name":"driver/npu"`, `"name":"z/npu"`)
	full("component-name", `"name":"driver/npu"`, `"name":"driver npu"`)
	full("annotations-unsorted", `"ci":"run 4711","note":`, `"note":"run 4711","ci":`)
	full("annotations-repeated", `"ci":"run 4711"`, `"ci":"run 4711","ci":"run 4711"`)
	full("annotations-empty-key", `"ci":"run 4711"`, `"":"run 4711"`)
	full("annotation-number", `"ci":"run 4711"`, `"ci":4711`)
	full("licenses-unsorted", `"Apache-2.0","MIT"`, `"MIT","Apache-2.0"`)
	full("empty-list-element", `"soc":["x0","x1"]`, `"soc":["","x1"]`)
	add("too-many-annotations", func(r *recipe) {
		r.payload = func(s string) string {
			var builder strings.Builder
			for i := range 65 {
				fmt.Fprintf(&builder, `,"k%03d":"v"`, i)
			}
			return strings.TrimSuffix(s, "}") + `,"annotations":{` + builder.String()[1:] + "}}"
		}
	})
	add("too-many-features", func(given *recipe) {
		var f []string
		for i := range 65 {
			f = append(f, fmt.Sprintf(`"f%03d"`, i))
		}
		given.payload = replace(`["chunks/1"]`, "["+strings.Join(f, ",")+"]")
	})
	blobs := func(name, comment string, size int64, n int) {
		add(name, func(r *recipe) {
			r.payload = func(s string) string {
				var builder strings.Builder
				zero := strings.Repeat("0", 64)
				for i := range n {
					fmt.Fprintf(&builder,
						`,{"name":"x%05d","role":"weights","type":"t","size":%d,"align":65536,"sha256":"%s","root":"%s"}`, i, size, zero, zero)
				}
				return strings.TrimSuffix(s, "]}") + builder.String() + "]}"
			}
		}).comment = comment
	}
	blobs("sum-over-limit", "each size is legal, the sum is not", 1<<46, 2)
	blobs("too-many-chunks", "each size is legal, the chunk table is not", 1<<35, 1)
	add("long-string", func(r *recipe) {
		r.payload = replace(`"version":"1.0"`,
			`"version":"`+strings.Repeat("1", 201)+`"`)
	})
	slices.SortFunc(out, func(a, b vector) int { return strings.Compare(a.name, b.name) })
	return out
}

func policyVectors() []vector {
	const host = "soc=x1,x2 os=linux arch=arm64 cpu=asimd,i8mm ram=8000000000 driver/npu=2.30.1 " +
		"library/onnxruntime=1.22.0,tok"
	const policy = "runtime=1.2.3"
	var out []vector
	add := func(step Step, name, policy, host string, edit func(*recipe)) {
		out = append(out, vector{name: string(step) + "-" + name, expect: step, policy: policy, host: host, edit: edit})
	}
	nothing := func(*recipe) {}
	add(stepCompat, "unknown-feature", "", "",
		func(r *recipe) { r.manifest.Requires.Features = []string{FeatureChunks, "chunks/2"} })
	add(stepCompat, "newer-runtime", "runtime=1.1.9", host, fullManifest)
	add(stepCompat, "no-runtime", "", host, fullManifest)
	add(stepCompat, "unreadable-runtime", "runtime=dev", host, fullManifest)
	without := func(name, old, new string) {
		if !strings.Contains(host, old) {
			panic(old)
		}
		add(stepPolicy, name, policy, strings.TrimSpace(strings.Replace(host, old, new, 1)), fullManifest)
	}
	without("other-soc", "soc=x1,x2", "soc=y1")
	without("no-soc", "soc=x1,x2 ", "")
	without("other-os", "os=linux", "os=android")
	without("other-arch", "arch=arm64", "arch=amd64")
	without("missing-cpu-feature", "cpu=asimd,i8mm", "cpu=asimd")
	without("little-memory", "ram=8000000000", "ram=4000000000")
	without("missing-driver", "driver/npu=2.30.1 ", "")
	without("driver-too-old", "driver/npu=2.30.1", "driver/npu=2.29.9")
	without("driver-too-new", "driver/npu=2.30.1", "driver/npu=2.31.0")
	without("driver-version-unreadable", "driver/npu=2.30.1", "driver/npu=unknown")
	without("library-not-exact", "library/onnxruntime=1.22.0,tok", "library/onnxruntime=1.22.1,tok")
	without("other-token", "1.22.0,tok", "1.22.0,token")
	without("token-cannot-be-checked", "1.22.0,tok", "1.22.0")
	add(stepPolicy, "missing-component-of-any-version", "", "soc=x1", func(r *recipe) {
		r.manifest.Target.Components = []Component{{Name: "library/any"}}
	})
	add(stepPolicy, "other-product", "product=com.example.other", "", nothing)
	add(stepPolicy, "below-floor", "floor=5", "", nothing)
	add(stepPolicy, "below-stored", "stored=com.example.test,1,5", "", nothing)
	add(stepPolicy, "jump", "jump=3", "", nothing)
	add(stepPolicy, "default-jump", "", "", func(r *recipe) { r.manifest.SecurityVersion = 1001 })
	add(stepPolicy, "older-generation-than-stored", "stored=com.example.test,2,0", "", nothing)
	add(stepPolicy, "other-generation-than-keyring", "", "", func(r *recipe) { r.manifest.KeyringGeneration = 2 })
	add(stepPolicy, "expired", "now=1900000000 "+policy, host, fullManifest)
	add(stepPolicy, "from-the-future", "now=1600000000 "+policy, host, fullManifest)
	return out
}

func layoutVectors() []vector {
	var out []vector
	add := func(name string, edit func(f []byte, l layout) []byte) {
		out = append(out, vector{name: "layout-" + name, expect: stepLayout, edit: func(r *recipe) { r.file = edit }})
	}
	add("one-byte-short", func(f []byte, _ layout) []byte { return f[:len(f)-1] })
	add("one-byte-long", func(f []byte, _ layout) []byte { return append(f, 0) })
	add("a-page-long", func(f []byte, _ layout) []byte { return append(f, make([]byte, pageAlign)...) })
	add("second-bundle-appended", func(f []byte, _ layout) []byte { return append(f, f...) })
	add("cut-in-blobs", func(f []byte, l layout) []byte { return f[:l.blobs] })
	add("cut-in-table", func(f []byte, l layout) []byte { return f[:l.table+8] })
	add("cut-behind-envelope", func(f []byte, l layout) []byte {
		return f[:headerBytes+binary.LittleEndian.Uint64(f[16:])]
	})
	set := func(name string, at func(f []byte, l layout) int64) {
		add("padding-"+name, func(data []byte, l layout) []byte {
			if i := at(data, l); data[i] != 0 {
				panic("not padding")
			} else {
				data[i] = 1
			}
			return data
		})
	}
	set("behind-envelope",
		func(f []byte, _ layout) int64 { return headerBytes + int64(binary.LittleEndian.Uint64(f[16:])) })
	set("before-table", func(_ []byte, l layout) int64 { return l.table - 1 })
	set("behind-table", func(_ []byte, l layout) int64 { return l.table + leafBytes*l.leaves[len(l.leaves)-1] })
	set("before-blobs", func(_ []byte, l layout) int64 { return l.blobs - 1 })
	set("between-blobs", func(_ []byte, l layout) int64 { return l.offsets[1] - 1 })
	set("at-the-end", func(_ []byte, l layout) int64 { return l.size - 1 })
	out = append(out, vector{name: "layout-size-beyond-file", expect: stepLayout,
		comment: "a blob of 64 TiB in a small file",
		edit: func(given *recipe) {
			given.payload = replace(`"chunk_size":4096`, `"chunk_size":16777216`)
			old := given.payload
			given.payload = func(s string) string {
				return replace(`"size":8192,"align":64`, `"size":17592186044416,"align":65536`)(old(s))
			}
		}})
	return out
}

func contentVectors() []vector {
	var out []vector
	add := func(step Step, name, comment string, edit func(*recipe)) {
		out = append(out, vector{name: string(step) + "-" + name, expect: step, comment: comment, edit: edit})
	}
	file := func(step Step, name string, edit func(f []byte, l layout)) {
		add(step, name, "", func(r *recipe) { r.file = func(f []byte, l layout) []byte { edit(f, l); return f } })
	}
	leaf := func(l layout, i int64) int64 { return l.table + leafBytes*i }
	swap := func(data []byte, a, b, n int64) {
		old := bytes.Clone(data[a : a+n])
		copy(data[a:a+n], data[b:b+n])
		copy(data[b:b+n], old)
	}
	// Leaves: graph/npu 0-1, plan 2, weights/000 3-6, weights/001 7-8.
	for i := range int64(9) {
		file(stepTable, fmt.Sprintf("leaf-%d-flipped", i), func(f []byte, l layout) { f[leaf(l, i)+i] ^= 1 << (i % 8) })
	}
	file(stepTable, "leaves-swapped", func(f []byte, l layout) { swap(f, leaf(l, 3), leaf(l, 4), leafBytes) })
	file(stepTable, "leaves-of-two-blobs-swapped",
		func(f []byte, l layout) { swap(f, leaf(l, 3), leaf(l, 7), leafBytes) })
	file(stepTable, "chunks-and-leaves-swapped", func(data []byte, l layout) {
		swap(data, leaf(l, 3), leaf(l, 4), leafBytes)
		swap(data, l.offsets[2], l.offsets[2]+testChunk, testChunk)
	})
	file(stepTable, "zeroed", func(f []byte, l layout) { clear(f[l.table : l.table+leafBytes*9]) })
	root := func(name string, edit func(m *Manifest)) {
		add(stepTable, name, "the signer contradicts itself", func(r *recipe) { r.digests = edit })
	}
	root("root-of-other-blob", func(m *Manifest) { m.Blobs[2].Root = m.Blobs[3].Root })
	root("root-without-size", func(m *Manifest) { m.Blobs[1].Root = m.Blobs[1].SHA256 })
	root("sha256-is-not-root", func(m *Manifest) { m.Blobs[2].SHA256[0] ^= 1 })
	root("sha256-of-code-is-not-root", func(m *Manifest) { m.Blobs[1].SHA256[31] ^= 1 })

	at := func(step Step, name string, blob int, offset int64) {
		file(step, name, func(f []byte, l layout) { f[l.offsets[blob]+offset] ^= 0x10 })
	}
	at(stepCode, "graph-first-byte", 0, 0)
	at(stepCode, "graph-last-byte", 0, 4999)
	at(stepCode, "plan-first-byte", 1, 0)
	at(stepCode, "plan-last-byte", 1, 299)
	file(stepCode, "plan-zeroed", func(f []byte, l layout) { clear(f[l.offsets[1] : l.offsets[1]+300]) })
	for i, role := range []Role{RoleGPUKernel, roleRuntime, RoleTokenizer, RoleConfig, RoleReport, RoleSelfTest} {
		add(stepCode, string(role)+"-flipped", "", func(given *recipe) {
			given.add("zz", role, pattern(byte(i), 100))
			given.file = func(f []byte, l layout) []byte { f[l.offsets[4]+50] ^= 1; return f }
		})
	}
	add(stepCode, "two-graphs-swapped", "", func(given *recipe) {
		given.add("graph/np2", RoleNPUGraph, pattern(9, 5000))
		given.file = func(f []byte, l layout) []byte { swap(f, l.offsets[0], l.offsets[1], 5000); return f }
	})
	at(stepWeights, "first-byte", 2, 0)
	at(stepWeights, "chunk-edge", 2, testChunk)
	at(stepWeights, "middle-chunk", 2, testChunk+77)
	at(stepWeights, "last-byte-of-partial-chunk", 2, 3*testChunk+16)
	at(stepWeights, "last-byte-of-full-chunk", 3, 2*testChunk-1)
	file(stepWeights, "chunks-swapped",
		func(f []byte, l layout) { swap(f, l.offsets[2], l.offsets[2]+testChunk, testChunk) })
	file(stepWeights, "chunk-of-other-blob",
		func(f []byte, l layout) { swap(f, l.offsets[2], l.offsets[3], testChunk) })
	file(stepWeights, "zeroed", func(f []byte, l layout) { clear(f[l.offsets[3] : l.offsets[3]+2*testChunk]) })
	add(stepWeights, "two-blobs-swapped", "", func(given *recipe) {
		given.add("weights/002", RoleWeights, pattern(9, 2*testChunk))
		given.file = func(f []byte, l layout) []byte { swap(f, l.offsets[3], l.offsets[4], 2*testChunk); return f }
	})
	add(stepWeights, "reference-flipped", "", func(given *recipe) {
		given.add("zz", RoleReference, pattern(8, 100))
		given.file = func(f []byte, l layout) []byte { f[l.offsets[4]] ^= 1; return f }
	})
	return out
}
