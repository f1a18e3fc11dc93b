//go:build !linux

package main

import (
	"context"
	"errors"
	"io"
	"net"
)

var errNoNamespaces = errors.New("only Linux has network namespaces") //nolint:gochecknoglobals // a sentinel

type namespaceHandle = int

func rerunInside([]string, io.Writer, io.Writer) (int, error) { return 0, errNoNamespaces }

func mayMakeNamespaces() error { return errNoNamespaces }

func newNetwork() (*network, error) { return nil, errNoNamespaces }

func (n *network) dial(context.Context, string, string) (net.Conn, error) {
	return nil, errNoNamespaces
}

func (n *network) enter(namespaceHandle) ([]string, error) { return nil, errNoNamespaces }
