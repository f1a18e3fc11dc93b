// Package issuer is an OpenID Connect issuer for tests: discovery, keys that tests can change, and tokens, both valid
// and hostile.
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

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// Key is a signing key.
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
	document map[string]any // nil: the correct one
	keySet   []byte         // nil: generated from keys
	requests map[string]int // by path
	made     int
}

// New starts an issuer with one key. It stops at the end of the test.
func New(t *testing.T) *Issuer {
	t.Helper()
	i := &Issuer{requests: map[string]int{}}
	i.Rotate(t)
	i.server = httptest.NewUnstartedServer(http.HandlerFunc(i.serve))
	i.server.Config.ErrorLog = log.New(io.Discard, "", 0) // some handshakes fail on purpose
	i.server.StartTLS()
	t.Cleanup(i.server.Close)
	i.URL = i.server.URL
	i.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.server.Certificate().Raw})
	return i
}

// Roots returns a pool with the issuer's CA.
func (i *Issuer) Roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(i.server.Certificate())
	return roots
}

// Rotate replaces all keys with a new one.
func (i *Issuer) Rotate(t *testing.T) Key {
	t.Helper()
	signer := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	i.mu.Lock()
	i.made++
	key := Key{ID: "key-" + strconv.Itoa(i.made), Algorithm: jose.ES256, Signer: signer}
	i.mu.Unlock()
	i.SetKeys(key)
	return key
}

// NewRSA generates an RSA key, for SetKeys.
func NewRSA(t *testing.T, id string, algorithm jose.SignatureAlgorithm) Key {
	t.Helper()
	signer := must.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	return Key{ID: id, Algorithm: algorithm, Signer: signer}
}

// SetKeys replaces the issuer's keys. It signs with the first.
func (i *Issuer) SetKeys(keys ...Key) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = keys
}

// SetAway makes the issuer respond to every request with status 503, or stops that.
func (i *Issuer) SetAway(away bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.away = away
}

// SetDocument replaces the discovery document; nil restores the correct one.
func (i *Issuer) SetDocument(document map[string]any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.document = document
}

// SetKeySet replaces the key set; nil restores the correct one.
func (i *Issuer) SetKeySet(keySet []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keySet = keySet
}

// Requests returns the number of requests for the discovery document and for the keys.
func (i *Issuer) Requests() (discovery, keys int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.requests["/.well-known/openid-configuration"], i.requests["/keys"]
}

// Claims returns the claims of a valid token for an audience, with changes; a nil value removes a claim.
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

// Sign returns a token with these claims, signed with k.
func (k Key) Sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	signer := must.Get(jose.NewSigner(
		jose.SigningKey{Algorithm: k.Algorithm, Key: jose.JSONWebKey{Key: k.Signer, KeyID: k.ID}},
		nil,
	))(t)
	payload := must.Get(json.Marshal(claims))(t)
	signed := must.Get(signer.Sign(payload))(t)
	token := must.Get(signed.CompactSerialize())(t)
	return token
}

// Forge returns a token with an arbitrary header and signature.
func Forge(t *testing.T, header, claims map[string]any, sign func(input string) []byte) string {
	t.Helper()
	part := func(value any) string {
		text := must.Get(json.Marshal(value))(t)
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
