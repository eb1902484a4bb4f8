//go:build !linux

package demo

import "syscall"

func apart() *syscall.SysProcAttr { return nil }
