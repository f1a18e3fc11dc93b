// Package migrate implements `pinniped migrate`: what stands in the way of taking over from Pinniped, and of going back.
//
// It reads the cluster (gather.go), decides (findings.go and the files about one obstacle each; pure), and prints. It
// changes nothing: what is to be done are commands for kubectl, which the user reads and runs.
package migrate
