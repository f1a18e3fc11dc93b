package request

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

// Unlogged is for requests with a token in the body: at its highest levels, client-go logs bodies.
func Unlogged(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// Bounded truncates external text to a length that fits into a log line.
func Bounded(text string) string { return logs.Truncate(text, 512) }

// Shown truncates client input to a length that fits into an error.
func Shown(text string) string { return logs.Truncate(text, 128) }
