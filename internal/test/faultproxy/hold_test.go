package faultproxy

import (
	"context"
	"net"
	"testing"
)

func TestHeldConnectionWritesNothingUntilItsRelease(t *testing.T) {
	l := listen(t)
	h := HoldAt("COMMIT")
	defer h.Release()
	connect := func() (client, server net.Conn) {
		t.Helper()
		conn, err := h.Dial(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn, accept(t, l)
	}
	first, firstServer := connect()
	send(t, first, "BEGIN")
	wantBytes(t, "server", firstServer, "BEGIN")
	written := make(chan error, 1)
	go func() {
		_, err := first.Write([]byte("then COMMIT"))
		written <- err
	}()
	<-h.Reached
	wantSilence(t, "server", firstServer)

	second, secondServer := connect() // one is held, and no other
	send(t, second, "COMMIT")
	wantBytes(t, "server", secondServer, "COMMIT")

	h.Release()
	if err := <-written; err != nil {
		t.Errorf("the write that was held = %v", err)
	}
	wantBytes(t, "server", firstServer, "then COMMIT")
}
