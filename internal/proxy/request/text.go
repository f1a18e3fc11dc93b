package request

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// maxShown limits how many bytes of client input an error shows.
const maxShown = 128

// Unlogged is for requests with a token in the body: at its highest levels, client-go logs bodies.
func Unlogged(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// Bounded truncates external text to a length that fits into a log line.
func Bounded(text string) string {
	const most = 512
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

// Shown truncates client input to a length that fits into an error.
func Shown(text string) string {
	if len(text) > maxShown {
		return text[:maxShown] + "..."
	}
	return text
}
