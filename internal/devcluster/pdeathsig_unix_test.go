//go:build unix && !linux

package devcluster

const pdeathsigMissing = true
