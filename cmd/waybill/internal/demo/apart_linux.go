package demo

import "syscall"

// apart keeps a Ctrl-C at the terminal from the relays, which the demo stops
// itself, and ends them with the demo however that ends.
func apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
