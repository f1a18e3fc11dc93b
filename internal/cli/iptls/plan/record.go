package plan

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

// UndoAnnotation is the annotation in which the commands keep a record. It holds what a spec may hold, and never a key.
const UndoAnnotation = "ip-tls.pinniped.dev/undo"

// MaxRecord bounds one record. The API server takes 256 KiB for all annotations of an object.
const MaxRecord = 100 << 10

// undoVersion is the version of the format of undoRecord.
const undoVersion = 1

// UndoRecord is what `ip-tls undo` needs: the configuration before the last change, and the one after it, from which
// it sees what others have changed since.
type UndoRecord struct {
	Version  int       `json:"version"`
	Command  string    `json:"command"`
	At       time.Time `json:"at"`
	Previous Target    `json:"previous"`
	// Left is what the command left, with the hash of a CA bundle in its place.
	Left Target `json:"left"`
	// SecretReplaced names a Secret whose content the command replaced as well. That is not kept.
	SecretReplaced string `json:"secretReplaced,omitempty"`
	// SecretsMade names Secrets that the command, and those before it that Previous skips, have made.
	SecretsMade []string `json:"secretsMade,omitempty"`
}

// NewUndoRecord returns the record of a change to the wanted configuration. An undo of it leads to the last
// configuration that was in effect. So a record of how to undo the configuration that issuer has now is taken over where
// that one, a typo for example, never was in effect, or where it has switched the proxy off: nobody who takes back what
// switched it on again wants to lock everybody out.
func NewUndoRecord(command string, at time.Time, issuer *configv1alpha1.CredentialIssuer,
	wanted configv1alpha1.ImpersonationProxySpec,
) UndoRecord {
	record := UndoRecord{
		Version: undoVersion, Command: command, At: at.UTC().Truncate(time.Second),
		Previous: TargetOf(issuer.Spec.ImpersonationProxy), Left: TargetOf(&wanted).Digested(),
	}
	earlier, err := ReadUndoRecord(issuer)
	off := issuer.Spec.ImpersonationProxy.Mode == configv1alpha1.ImpersonationProxyModeDisabled
	if err == nil && earlier != nil && reflect.DeepEqual(earlier.Left, record.Previous.Digested()) &&
		(off || !InEffect(issuer)) {
		record.Previous, record.SecretsMade = earlier.Previous, earlier.SecretsMade
	}
	return record
}

// ReadUndoRecord returns nil when there is none.
func ReadUndoRecord(issuer *configv1alpha1.CredentialIssuer) (*UndoRecord, error) {
	text := issuer.Annotations[UndoAnnotation]
	if text == "" {
		return nil, nil
	}
	var record UndoRecord
	if err := DecodeRecord(text, &record); err != nil {
		return nil, fmt.Errorf("reading annotation %q of CredentialIssuer %q: %w", UndoAnnotation, issuer.Name, err)
	}
	if record.Version != undoVersion {
		return nil, fmt.Errorf("reading annotation %q of CredentialIssuer %q: its version is %d, and this program "+
			"knows version %d",
			UndoAnnotation, issuer.Name, record.Version, undoVersion)
	}
	return &record, nil
}

// DecodeRecord refuses what it does not know: acting on half a record is worse than not acting.
func DecodeRecord(text string, into any) error {
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

// EncodeRecord returns false for a record that is too large to be kept.
func EncodeRecord(record any) (string, bool, error) {
	encoded, err := json.Marshal(record)
	if err != nil {
		return "", false, fmt.Errorf("encoding the record of the change: %w", err)
	}
	if len(encoded) > MaxRecord {
		return "", false, nil
	}
	return string(encoded), true, nil
}

// Undone returns the configuration that an undo makes: now, with what the recorded command changed put back.
// changedSince names the fields among these that somebody else has changed.
func (r *UndoRecord) Undone(now Target) (wanted Target, changedSince []string) {
	wanted = now
	left, seen := r.Left, now.Digested()
	before := r.Previous.Digested()
	if !reflect.DeepEqual(before.TLS, left.TLS) {
		wanted.TLS = r.Previous.TLS
		changedSince = append(changedSince, TLSDifferences(left, seen)...)
	}
	if before.ExternalEndpoint != left.ExternalEndpoint {
		wanted.ExternalEndpoint = r.Previous.ExternalEndpoint
		if seen.ExternalEndpoint != left.ExternalEndpoint {
			changedSince = append(changedSince, fieldEndpoint)
		}
	}
	if before.Mode != left.Mode {
		wanted.Mode = r.Previous.Mode
		if seen.Mode != left.Mode {
			changedSince = append(changedSince, fieldMode)
		}
	}
	if before.ServiceType != left.ServiceType {
		wanted.ServiceType = r.Previous.ServiceType
		if seen.ServiceType != left.ServiceType {
			changedSince = append(changedSince, fieldServiceType)
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

// TLSDifferences names the fields of the tls block that differ between two digested targets.
func TLSDifferences(a, b Target) []string {
	if reflect.DeepEqual(a.TLS, b.TLS) {
		return nil
	}
	var fields []string
	for _, change := range ChangesBetween(configv1alpha1.ImpersonationProxySpec{TLS: a.TLS},
		configv1alpha1.ImpersonationProxySpec{TLS: b.TLS}) {
		fields = append(fields, change.Field)
	}
	return fields
}
