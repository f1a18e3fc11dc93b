package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// Print writes object with err to w if format is json or yaml, and the result of text otherwise. It returns err.
func Print(w io.Writer, format string, object Object, err error, text func() ([]byte, error)) error {
	var encoded []byte
	var failed error
	if Machine(format) {
		object.head().Error = ErrorOf(err)
		encoded, failed = Encode(format, object)
	} else {
		encoded, failed = text()
		encoded = ui.Text(w, encoded)
	}
	if failed != nil {
		return errors.Join(err, fmt.Errorf("encoding the result: %w", failed))
	}
	if len(encoded) == 0 {
		return err
	}
	if _, failed := w.Write(encoded); failed != nil {
		return errors.Join(err, fmt.Errorf("writing the result: %w", failed))
	}
	if err == nil {
		return nil
	}
	return &printed{err}
}

// printed is an error that is part of a printed object.
type printed struct{ error }

func (p *printed) Unwrap() error { return p.error }

// Printed reports whether an object with err has been printed to stdout.
func Printed(err error) bool {
	_, ok := errors.AsType[*printed](err)
	return ok
}

// Machine reports whether a format is for programs.
func Machine(format string) bool { return format == "json" || format == "yaml" }

// Encode returns the object as JSON or YAML.
func Encode(format string, object Object) ([]byte, error) {
	head := object.head()
	head.APIVersion, head.Kind = APIVersion, Kind(reflect.TypeOf(object).Elem().Name())
	if reflect.TypeOf(Kinds()[head.Kind]) != reflect.TypeOf(object) {
		return nil, fmt.Errorf("%T is not among result.Kinds", object)
	}
	if format == "yaml" {
		return yaml.Marshal(object)
	}
	encoded, err := json.MarshalIndent(object, "", "  ")
	return append(encoded, '\n'), err
}
