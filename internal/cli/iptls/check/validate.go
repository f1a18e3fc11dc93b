package check

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Validate checks the flags.
func (o *Options) Validate() error {
	if err := cmp.Or(o.Session.Validate(factory.Formats()...), o.Certificate.Validate(), o.validateSource(),
		session.ValidateEndpoint("endpoint", o.Endpoint)); err != nil {
		return err
	}
	for _, name := range o.Names {
		if err := validateName(name); err != nil {
			return err
		}
	}
	if o.FailOn != "" && o.FailOn != failOnError && o.FailOn != failOnWarning {
		return ui.Usage(fmt.Errorf("invalid value %q for --fail-on: supported values are %q and %q", o.FailOn,
			failOnError, failOnWarning))
	}
	var err error
	if o.Within != "" {
		if o.within, err = parseSpan(o.Within); err != nil {
			return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --expires-within: %w", o.Within, err)),
				"write 30d for 30 days, or 12h")
		}
	}
	if o.At == "" {
		return nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if o.at, err = time.Parse(layout, o.At); err == nil {
			return nil
		}
	}
	return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --at: not a time", o.At)),
		"write 2027-01-31, or 2027-01-31T08:00:00Z")
}

// parseSpan parses a number of days, or a time.ParseDuration text.
func parseSpan(text string) (time.Duration, error) {
	const day = 24 * time.Hour
	if count, ok := strings.CutSuffix(text, "d"); ok {
		days, err := strconv.ParseUint(count, 10, 32)
		if err != nil {
			return 0, errors.New("not a number of days")
		}
		if days == 0 || days > uint64(math.MaxInt64/day) {
			return 0, errors.New("not a number of days from 1 to 106751")
		}
		return time.Duration(days) * day, nil
	}
	span, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("not a time span")
	}
	if span <= 0 {
		return 0, errors.New("not a positive duration")
	}
	return span, nil
}

func validateName(name string) error {
	if _, err := netip.ParseAddr(name); err == nil {
		return nil
	}
	_, port, err := certs.ParseEndpoint(name)
	if inner := errors.Unwrap(err); inner != nil {
		err = inner // without "endpoint", which it is not
	}
	if err == nil && port != "" {
		err = errors.New("it has a port")
	}
	if err != nil {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --name: %w", name, err)),
			"write a DNS name or an IP address, without a port")
	}
	return nil
}

// validateSource permits one source of the certificate, and only flags that apply to it.
func (o *Options) validateSource() error {
	for _, source := range []struct {
		flag     string
		excluded []string
	}{
		{"cert", []string{"endpoint", "secret", "ca-from-secret", "load-balancer-ip"}},
		{"endpoint", []string{"key", "secret", "ca-from-secret", "external-endpoint", "load-balancer-ip", "name"}},
	} {
		if !o.Certificate.Changed(source.flag) {
			continue
		}
		for _, other := range source.excluded {
			if o.Certificate.Changed(other) {
				return ui.Usage(fmt.Errorf("--%s and --%s cannot be combined", source.flag, other))
			}
		}
		if len(o.Key) > 0 && len(o.Key) != len(o.Cert) {
			return ui.WithHint(ui.Usage(fmt.Errorf("--cert is given %d times, --key %d times", len(o.Cert), len(o.Key))),
				"pass one --key for each --cert, in the same order, or none")
		}
		return nil
	}
	for _, flag := range []string{"key", "name"} {
		if o.Certificate.Changed(flag) {
			return ui.WithHint(ui.Usage(fmt.Errorf("--%s needs --cert", flag)),
				"also pass the certificate: --cert fullchain.pem")
		}
	}
	return nil
}
