package keyset_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"math/big"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/pinniped-toolkit/pinniped/internal/keyset"
)

// members are the members of a key in JSON.
type members map[string]any

func (m members) with(name string, value any) members {
	changed := maps.Clone(m)
	if changed[name] = value; value == nil {
		delete(changed, name)
	}
	return changed
}

func text(number *big.Int) string { return base64.RawURLEncoding.EncodeToString(number.Bytes()) }

func sign(t *testing.T, algorithm jose.SignatureAlgorithm, key crypto.PrivateKey, id string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign([]byte(`{"sub":"ann"}`))
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func set(t *testing.T, keys ...any) []byte {
	t.Helper()
	document, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// shortKey returns a P-521 key whose x coordinate starts with a zero byte.
func shortKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	for {
		key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if len(key.X.Bytes()) < 66 {
			return key
		}
	}
}

// TestOneKeyOfMany combines a good key with keys of real issuers. The good one always works; the other works, or is
// reported with the reason.
func TestOneKeyOfMany(t *testing.T) {
	t.Parallel()
	good, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	goodKey := members{"kty": "RSA", "kid": "good", "use": "sig", "n": text(good.N), "e": "AQAB"}
	short := shortKey(t)
	shortMembers := members{"kty": "EC", "kid": "other", "crv": "P-521", "x": text(short.X), "y": text(short.Y)}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edwards := members{"kty": "OKP", "kid": "other", "crv": "Ed25519", "x": base64.RawURLEncoding.EncodeToString(public)}
	another := goodKey.with("kid", "other")
	signShort := sign(t, jose.ES512, short, "other")
	signRSA := sign(t, jose.RS256, good, "other")
	for name, test := range map[string]struct {
		key   any
		token string // signed with the key; signRSA by default
		says  string // why the key is skipped; empty if it is used
	}{
		"a coordinate without its leading zero": {key: shortMembers, token: signShort},
		"a coordinate with a zero too many": {
			key:   shortMembers.with("x", base64.RawURLEncoding.EncodeToString(append([]byte{0, 0}, short.X.FillBytes(make([]byte, 66))...))),
			token: signShort,
		},
		"base64 with padding, of the standard alphabet": {
			key: another.with("n", base64.StdEncoding.EncodeToString(good.N.Bytes())), token: signRSA,
		},
		"a certificate that is none":       {key: another.with("x5c", []any{"AAAA"}), token: signRSA},
		"certificates that are no list":    {key: another.with("x5c", "AAAA").with("x5t", 7), token: signRSA},
		"operations and algorithm of ours": {key: another.with("alg", "RSA-OAEP").with("key_ops", 1), token: signRSA},
		"no use":                           {key: another.with("use", nil), token: signRSA},
		"Ed25519":                          {key: edwards, token: sign(t, jose.EdDSA, private, "other")},
		"a key of P-256 with a point that is not on it": {
			key: shortMembers.with("crv", "P-256").with("x", "AQ").with("y", "AQ"), token: signShort, says: "its point (x, y) is not on the curve P-256",
		},
		"a coordinate of another curve": {key: shortMembers.with("crv", "P-256"), token: signShort, says: "its x has"},
		"a curve of bitcoin":            {key: shortMembers.with("crv", "secp256k1"), token: signShort, says: `its curve (crv) is "secp256k1"`},
		"Ed448":                         {key: edwards.with("crv", "Ed448"), says: `its curve (crv) is "Ed448"`},
		"a new kind":                    {key: members{"kty": "AKP", "kid": "other", "alg": "ML-DSA-44"}, says: `its kind (kty) is "AKP"`},
		"a secret":                      {key: members{"kty": "oct", "kid": "other", "k": "c2VjcmV0"}, says: `its kind (kty) is "oct"`},
		"an encryption key":             {key: another.with("use", "enc"), says: `its use is "enc"`},
		"a private key":                 {key: another.with("d", text(good.D)), says: "published with its private part"},
		"a small RSA key":               {key: another.with("n", text(new(big.Int).Rsh(good.N, 1536))), says: "a 512-bit RSA key"},
		"a huge RSA key": {
			key: another.with("n", text(new(big.Int).SetBit(good.N, 20000, 1))), says: "a 20001-bit RSA key",
		},
		"an even exponent":      {key: another.with("e", "AQAA"), says: "its exponent (e)"},
		"no modulus":            {key: another.with("n", nil), says: "it has no n"},
		"base64 that is none":   {key: another.with("n", "!"), says: "its n is not base64"},
		"an ID that is no text": {key: another.with("kid", 7), says: "its kid is not text"},
		"no object":             {key: "other", says: "it is not a JSON object"},
		"null":                  {key: nil, says: "it is not a JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := keyset.Parse(set(t, test.key, goodKey))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := found.VerifySignature(t.Context(), sign(t, jose.RS256, good, "good")); err != nil {
				t.Errorf("the good key: %v", err)
			}
			token := test.token
			if token == "" {
				token = signRSA
			}
			_, err = found.VerifySignature(t.Context(), token)
			if test.says == "" {
				if err != nil || len(found.Skipped) > 0 {
					t.Errorf("got %v, skipped %v", err, found.Skipped)
				}
				return
			}
			if len(found.Skipped) != 1 || !strings.Contains(found.Skipped[0].String(), test.says) {
				t.Errorf("want one key skipped as %q, got %v", test.says, found.Skipped)
			}
			if err == nil {
				t.Error("a token of the skipped key is accepted")
			}
			if _, ok := errors.AsType[*keyset.SkippedError](err); !ok && found.Skipped[0].ID != "" {
				t.Errorf("it does not say that the token's key is skipped: %v", err)
			}
		})
	}
}

func TestNoUsableKey(t *testing.T) {
	t.Parallel()
	many := make([]any, keyset.MaxKeys+1)
	for i := range many {
		many[i] = members{"kty": "AKP", "kid": strings.Repeat("k", 1000) + "\x1b[2J"}
	}
	for name, test := range map[string]struct {
		document []byte
		says     string
		named    bool // the error lists the skipped keys
	}{
		"no JSON":      {[]byte("<html>secret"), "it is not a key set", false},
		"no list":      {[]byte(`{"keys":"secret"}`), "it is not a key set", false},
		"no keys":      {[]byte(`{"error":"secret"}`), "it is not a key set", false},
		"an empty one": {[]byte(`{"keys":[]}`), "the key set has no keys", false},
		"no objects":   {[]byte(`{"keys":["secret",{"secret":"secret"}]}`), "the key set has no keys", false},
		"too many":     {set(t, many...), "101 keys, more than the 100", false},
		"unusable":     {set(t, members{"kty": "EC", "crv": "P-521", "kid": "a", "x": "secret"}), `key "a": it has no y`, true},
		"unusable, and many": {
			set(t, many[:20]...), "none of the issuer's keys can be used: ", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := keyset.Parse(test.document)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v", err)
			}
			if _, named := errors.AsType[*keyset.SkippedError](err); named != test.named {
				t.Errorf("got %T", err)
			}
			if text := err.Error(); strings.Contains(text, "secret") || strings.Contains(text, "\x1b") || len(text) > 1000 {
				t.Errorf("unsafe to print: %q", text)
			}
		})
	}
}

// TestWrongSignature verifies tokens that no usable key has signed, some of which name a skipped key.
func TestWrongSignature(t *testing.T) {
	t.Parallel()
	good, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	unrelated, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	found, err := keyset.Parse(set(t,
		members{"kty": "RSA", "kid": "good", "n": text(good.N), "e": "AQAB"},
		members{"kty": "EC", "kid": "skipped", "crv": "secp256k1"},
	))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(sign(t, jose.RS256, good, "good"), ".")
	for name, test := range map[string]struct{ token, says string }{
		"another key with the ID":     {sign(t, jose.RS256, unrelated, "good"), "no key of the issuer"},
		"an ID that is not there":     {sign(t, jose.RS256, good, "other"), "no key of the issuer"},
		"the ID of a skipped key":     {sign(t, jose.RS256, unrelated, "skipped"), `key "skipped": its curve`},
		"no ID, and no key fits":      {sign(t, jose.RS256, unrelated, ""), `key "skipped": its curve`},
		"a secret, which is the key":  {sign(t, jose.HS256, good.N.Bytes(), "good"), "malformed"},
		"no signature":                {parts[0] + "." + parts[1] + ".", "no key of the issuer"},
		"no algorithm":                {"eyJhbGciOiJub25lIn0." + parts[1] + ".", "malformed"},
		"a signature of another text": {parts[0] + ".e30." + parts[2], "no key of the issuer"},
		"no token":                    {"x", "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := found.VerifySignature(t.Context(), test.token); err == nil ||
				!strings.Contains(err.Error(), test.says) {
				t.Errorf("want %q, got %v", test.says, err)
			}
		})
	}
	if _, err := found.VerifySignature(t.Context(), sign(t, jose.RS256, good, "")); err != nil {
		t.Errorf("a token without an ID of its key: %v", err)
	}
}
