package ui

import "golang.org/x/sys/unix"

const getMode = unix.TCGETS
