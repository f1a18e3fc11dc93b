//go:build !unix

package devcluster

// reservePort finds a free port. There is no way here to keep it until the program listens.
func reservePort() (*port, error) { return freePort() }

// reserveGoPort does the same.
func reserveGoPort() (*port, error) { return freePort() }

// portSharing: nothing is reserved here, so there is nothing to share.
const portSharing = false
