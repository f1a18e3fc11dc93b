package iptls

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// What the commands keep in the CredentialIssuer's annotations. It is never a key: only what a spec may hold.
const (
	undoAnnotation     = "ip-tls.pinniped.dev/undo"
	rotationAnnotation = "ip-tls.pinniped.dev/rotation"
)

// maxRecord bounds one record. The API server takes 256 KiB for all annotations of an object.
const maxRecord = 100 << 10

// undoVersion is the version of the format of undoRecord.
const undoVersion = 1

// undoRecord is what `ip-tls undo` needs: the configuration before the last change of these commands, and, to notice
// what others have done since, the one after it.
type undoRecord struct {
	Version  int       `json:"version"`
	Command  string    `json:"command"`
	At       time.Time `json:"at"`
	Previous target    `json:"previous"`
	// Left is what the command left, with the hash of a CA bundle in its place.
	Left target `json:"left"`
	// SecretReplaced names a Secret whose content the command replaced as well. That is not kept.
	SecretReplaced string `json:"secretReplaced,omitempty"`
}

func newUndoRecord(command string, at time.Time, issuer *configv1alpha1.CredentialIssuer, wanted configv1alpha1.ImpersonationProxySpec) undoRecord {
	return undoRecord{
		Version: undoVersion, Command: command, At: at.UTC().Truncate(time.Second),
		Previous: targetOf(issuer.Spec.ImpersonationProxy), Left: targetOf(&wanted).digested(),
	}
}

// readUndoRecord returns nil when there is none.
func readUndoRecord(issuer *configv1alpha1.CredentialIssuer) (*undoRecord, error) {
	text := issuer.Annotations[undoAnnotation]
	if text == "" {
		return nil, nil
	}
	var record undoRecord
	if err := decodeRecord(text, &record); err != nil {
		return nil, fmt.Errorf("reading annotation %q of CredentialIssuer %q: %w", undoAnnotation, issuer.Name, err)
	}
	if record.Version != undoVersion {
		return nil, fmt.Errorf("reading annotation %q of CredentialIssuer %q: its version is %d, and this program knows version %d",
			undoAnnotation, issuer.Name, record.Version, undoVersion)
	}
	return &record, nil
}

// decodeRecord refuses what it does not know: acting on half a record is worse than not acting.
func decodeRecord(text string, into any) error {
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the record")
	}
	return nil
}

// encodeRecord returns false for a record that is too large to be kept.
func encodeRecord(record any) (string, bool, error) {
	encoded, err := json.Marshal(record)
	if err != nil {
		return "", false, fmt.Errorf("encoding the record of the change: %w", err)
	}
	if len(encoded) > maxRecord {
		return "", false, nil
	}
	return string(encoded), true, nil
}

// undone returns the configuration that an undo makes: now, with what the recorded command changed put back. changedSince
// names the fields among these that somebody else has changed.
func (r *undoRecord) undone(now target) (wanted target, changedSince []string) {
	wanted = now
	left, seen := r.Left, now.digested()
	before := r.Previous.digested()
	if !reflect.DeepEqual(before.TLS, left.TLS) {
		wanted.TLS = r.Previous.TLS
		changedSince = append(changedSince, tlsDifferences(left, seen)...)
	}
	if before.ExternalEndpoint != left.ExternalEndpoint {
		wanted.ExternalEndpoint = r.Previous.ExternalEndpoint
		if seen.ExternalEndpoint != left.ExternalEndpoint {
			changedSince = append(changedSince, fieldEndpoint)
		}
	}
	if before.LoadBalancerIP != left.LoadBalancerIP {
		wanted.LoadBalancerIP = r.Previous.LoadBalancerIP
		if seen.LoadBalancerIP != left.LoadBalancerIP {
			changedSince = append(changedSince, fieldLoadBalancerIP)
		}
	}
	return wanted, changedSince
}

// tlsDifferences names the fields of the tls block that differ between two digested targets.
func tlsDifferences(a, b target) []string {
	if reflect.DeepEqual(a.TLS, b.TLS) {
		return nil
	}
	var fields []string
	for _, change := range changesBetween(configv1alpha1.ImpersonationProxySpec{TLS: a.TLS}, configv1alpha1.ImpersonationProxySpec{TLS: b.TLS}) {
		fields = append(fields, change.Field)
	}
	return fields
}
