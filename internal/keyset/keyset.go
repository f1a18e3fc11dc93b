// Package keyset reads the key set of an OpenID Connect issuer (RFC 7517) and verifies signatures with it.
//
// It decodes only what a signature needs, so that a certificate that Go rejects or a new key type breaks no login.
// Unusable keys are skipped and reported. No error quotes a key set.
package keyset

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/go-jose/go-jose/v4"
)

// MaxKeys is the maximum number of keys of an issuer.
const MaxKeys = 100

// Set holds the keys of an issuer. It is immutable and safe for concurrent use.
type Set struct {
	keys []key
	// Skipped are the unusable keys, sorted by ID.
	Skipped []Skipped
}

type key struct {
	id     string
	public any // *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// Skipped is an unusable key. ID and Reason are single lines of limited length.
type Skipped struct{ ID, Reason string }

func (s Skipped) String() string {
	if s.ID == "" {
		return "a key without an ID (kid): " + s.Reason
	}
	return fmt.Sprintf("key %q: %s", s.ID, s.Reason)
}

// SkippedError lists the skipped keys that were needed.
type SkippedError struct {
	what string
	Keys []Skipped
}

func (e *SkippedError) Error() string { return e.what + ": " + Describe(e.Keys) }

// Describe lists skipped keys with their reasons.
func Describe(keys []Skipped) string {
	const most = 5
	var texts []string
	for _, key := range keys[:min(len(keys), most)] {
		texts = append(texts, key.String())
	}
	if more := len(keys) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// Parse parses a key set. If none of its keys is usable, the error is a *SkippedError.
func Parse(document []byte) (*Set, error) {
	var set struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(document, &set); err != nil || set.Keys == nil {
		return nil, errors.New(`it is not a key set, a JSON object with a list "keys"`)
	}
	if n := len(*set.Keys); n > MaxKeys {
		return nil, fmt.Errorf("the key set has %d keys, more than the %d that are read", n, MaxKeys)
	}
	found := &Set{}
	objects := 0
	for _, text := range *set.Keys {
		fields, err := decode(text)
		if err != nil {
			found.Skipped = append(found.Skipped, Skipped{Reason: err.Error()})
			continue
		}
		objects++
		public, err := fields.public()
		if err != nil {
			found.Skipped = append(found.Skipped, Skipped{ID: plain(fields["kid"]), Reason: err.Error()})
			continue
		}
		found.keys = append(found.keys, key{id: fields["kid"], public: public})
	}
	slices.SortStableFunc(found.Skipped, func(a, b Skipped) int { return cmp.Compare(a.ID, b.ID) })
	switch {
	case len(found.keys) > 0:
		return found, nil
	case objects == 0: // probably not a key set; the error must not quote it
		return nil, errors.New("the key set has no keys")
	}
	return nil, &SkippedError{what: "none of the issuer's keys can be used", Keys: found.Skipped}
}

// Algorithms lists the signature algorithms that a Set verifies.
func Algorithms() []string {
	var names []string
	for _, algorithm := range algorithms() {
		names = append(names, string(algorithm))
	}
	return names
}

func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
		jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
}

// VerifySignature returns the payload of a token that a key of the set has signed. It does not inspect the payload. If
// the key of the token was skipped, the error is a *SkippedError.
func (s *Set) VerifySignature(_ context.Context, token string) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(token, algorithms())
	if err != nil {
		return nil, errors.New("the token is malformed, or its algorithm is not one of " + strings.Join(Algorithms(), ", "))
	}
	id := signed.Signatures[0].Header.KeyID
	for _, key := range s.keys {
		if id != "" && key.id != id {
			continue
		}
		if payload, err := signed.Verify(key.public); err == nil {
			return payload, nil
		}
	}
	if err := s.Skips(token); err != nil {
		return nil, err
	}
	return nil, errors.New("no key of the issuer verifies the signature")
}

// Skips returns a *SkippedError if the key that the token names was skipped, or if the token names none and any key was
// skipped. It verifies nothing.
func (s *Set) Skips(token string) error { return skips(s.Skipped, token) }

// Skips is Set.Skips for a key set without usable keys.
func (e *SkippedError) Skips(token string) error { return skips(e.Keys, token) }

func skips(keys []Skipped, token string) error {
	signed, err := jose.ParseSignedCompact(token, algorithms())
	if err != nil {
		return nil //nolint:nilerr // malformed, which no key would change
	}
	if id := plain(signed.Signatures[0].Header.KeyID); id != "" {
		keys = slices.DeleteFunc(slices.Clone(keys), func(k Skipped) bool { return k.ID != id })
	}
	if len(keys) == 0 {
		return nil
	}
	return &SkippedError{what: "the token is signed with a key that cannot be used", Keys: keys}
}

// plain makes text from the issuer safe to print.
func plain(text string) string {
	const most = 64
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text)
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
