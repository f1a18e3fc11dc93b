package certs

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	codes := Codes()
	if len(codes) != 39 {
		t.Errorf("%d codes", len(codes))
	}
	for i, code := range codes {
		e, ok := Explain(code)
		if !ok || e.Code != code || e.Cause == "" || e.Consequence == "" || e.Fix == "" {
			t.Errorf("%s is not explained: %+v", code, e)
		}
		if slices.Contains(codes[i+1:], code) {
			t.Errorf("%s is there twice", code)
		}
	}
	if _, ok := Explain("NoSuchCode"); ok {
		t.Error("a code that does not exist is explained")
	}
}

func TestAllowable(t *testing.T) {
	t.Parallel()
	for code, want := range map[Code]bool{
		KeyMismatch: false, NotACertificate: false, TooLarge: false, SecretIncomplete: false,
		NameNotCovered: true, Expired: false, ExpiresSoon: true, OldClientsBreak: true, BundleDoesNotVerify: true,
		MustStaple: false, "NoSuchCode": false,
	} {
		if got := Allowable(code); got != want {
			t.Errorf("Allowable(%s) = %v", code, got)
		}
	}
}

func TestFindingJSON(t *testing.T) {
	t.Parallel()
	data := must.Get(json.Marshal(NewFinding(SecretNotFound, "no Secret")))(t)
	var back Finding
	must.Do(t, json.Unmarshal(data, &back))
	if back.Code != SecretNotFound || back.Severity != SeverityError || back.Message != "no Secret" || back.Hint == "" {
		t.Errorf("got %+v from %s", back, data)
	}
	var s Severity
	if err := s.UnmarshalText([]byte("fatal")); err == nil {
		t.Error("an unknown severity is read")
	}
}
