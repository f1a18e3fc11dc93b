// Package issuer is an OpenID Connect issuer inside of a test: discovery, keys that can be changed, and tokens, good
// ones and hostile ones.
package issuer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Key signs tokens.
type Key struct {
	ID        string
	Algorithm jose.SignatureAlgorithm
	Signer    crypto.Signer
}

// Issuer is a running issuer. Its methods may be called while it serves.
type Issuer struct {
	URL string
	CA  []byte // PEM

	server *httptest.Server

	mu       sync.Mutex
	keys     []Key
	away     bool
	document map[string]any // nil: the right one
	keySet   []byte         // nil: of keys
	requests map[string]int // by path
	made     int
}

// New starts an issuer with one key, for the length of the test.
func New(t *testing.T) *Issuer {
	t.Helper()
	i := &Issuer{requests: map[string]int{}}
	i.Rotate(t)
	i.server = httptest.NewUnstartedServer(http.HandlerFunc(i.serve))
	i.server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are meant to fail
	i.server.StartTLS()
	t.Cleanup(i.server.Close)
	i.URL = i.server.URL
	i.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.server.Certificate().Raw})
	return i
}

// Roots is what verifies the issuer's certificate.
func (i *Issuer) Roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(i.server.Certificate())
	return roots
}

// Rotate makes the issuer sign with a new key, and forget those before.
func (i *Issuer) Rotate(t *testing.T) Key {
	t.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	i.made++
	key := Key{ID: "key-" + strconv.Itoa(i.made), Algorithm: jose.ES256, Signer: signer}
	i.mu.Unlock()
	i.SetKeys(key)
	return key
}

// NewRSA returns an RSA key that no issuer has yet.
func NewRSA(t *testing.T, id string, algorithm jose.SignatureAlgorithm) Key {
	t.Helper()
	signer, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return Key{ID: id, Algorithm: algorithm, Signer: signer}
}

// SetKeys makes these the issuer's keys; it signs with the first.
func (i *Issuer) SetKeys(keys ...Key) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = keys
}

// SetAway makes the issuer answer 503 to everything, or not.
func (i *Issuer) SetAway(away bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.away = away
}

// SetDocument makes the issuer serve this in place of its discovery document; nil is the right one.
func (i *Issuer) SetDocument(document map[string]any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.document = document
}

// SetKeySet makes the issuer serve this in place of its keys; nil is the right ones.
func (i *Issuer) SetKeySet(keySet []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keySet = keySet
}

// Requests is how many requests came for discovery and for keys.
func (i *Issuer) Requests() (discovery, keys int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.requests["/.well-known/openid-configuration"], i.requests["/keys"]
}

// Claims returns the claims of a good token for an audience, with changes; a value of nil takes a claim away.
func (i *Issuer) Claims(audience string, changes map[string]any) map[string]any {
	claims := map[string]any{
		"iss": i.URL, "aud": audience, "sub": "1234", "username": "ann", "groups": []string{"dev", "ops"},
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	return claims
}

// Token returns a token with these claims, signed with the issuer's first key.
func (i *Issuer) Token(t *testing.T, claims map[string]any) string {
	t.Helper()
	i.mu.Lock()
	key := i.keys[0]
	i.mu.Unlock()
	return key.Sign(t, claims)
}

// Sign returns a token with these claims.
func (k Key) Sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: k.Algorithm, Key: jose.JSONWebKey{Key: k.Signer, KeyID: k.ID}},
		nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// Forge returns a token with any header and signature.
func Forge(t *testing.T, header, claims map[string]any, sign func(input string) []byte) string {
	t.Helper()
	part := func(value any) string {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	input := part(header) + "." + part(claims)
	return input + "." + base64.RawURLEncoding.EncodeToString(sign(input))
}

func (i *Issuer) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.requests[r.URL.Path]++
	if i.away {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		document := i.document
		if document == nil {
			document = map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys"}
		}
		_ = json.NewEncoder(w).Encode(document)
	case "/keys":
		if i.keySet != nil {
			_, _ = w.Write(i.keySet)
			return
		}
		var set jose.JSONWebKeySet
		for _, key := range i.keys {
			set.Keys = append(
				set.Keys,
				jose.JSONWebKey{Key: key.Signer.Public(), KeyID: key.ID, Use: "sig", Algorithm: string(key.Algorithm)},
			)
		}
		_ = json.NewEncoder(w).Encode(set)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}
