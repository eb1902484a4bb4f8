package wayamqp

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A conn is one connection to the broker and its socket. Only closing the socket
// ends a blocked call: the library's calls, Close included, ignore their contexts.
type conn struct {
	client *amqp.Connection
	raw    net.Conn
	out    *socket // wraps raw for the library

	mu    sync.Mutex
	cause error // why it was cut, guarded by mu
}

// closeGrace is how long a clean close may take.
const closeGrace = time.Second

// dial connects and logs in, within the DialTimeout.
func dial(ctx context.Context, cfg Config) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.TLS != nil {
		secure = cfg.TLS.Clone() // the library writes to it
	}
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(cfg.Name)
	w := &conn{}
	watching := func() bool { return true }
	var err error
	w.client, err = amqp.DialConfig(cfg.URL, amqp.Config{
		Heartbeat: cfg.Heartbeat, TLSClientConfig: secure, Properties: properties,
		Dial: func(network, addr string) (_ net.Conn, err error) {
			w.raw, err = new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			watching = context.AfterFunc(ctx, func() { w.cut(ctx.Err()) })
			w.out = newSocket(w.raw)
			return w.out, nil
		},
	})
	if !watching() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if w.raw != nil {
			_ = w.raw.Close()
		}
		if ctx.Err() != nil { // the library saw a closed socket
			err = ctx.Err()
		}
		return nil, unavailable("connect", err)
	}
	// The library tells of the end first and closes the socket last, after taking
	// locks that a writer on a full socket holds.
	ends := w.client.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		<-ends
		w.drop()
	}()
	return w, nil
}

// cut ends the connection at once. Written bytes that were not sent are lost.
func (w *conn) cut(cause error) {
	w.because(cause)
	w.drop()
}

// drop closes the socket, and discards written bytes that were not sent.
func (w *conn) drop() {
	if tcp, ok := w.raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // or the kernel would go on sending
	}
	_ = w.raw.Close()
}

// because notes why this side ends the connection. The first cause counts.
func (w *conn) because(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == nil {
		w.cause = cause
	}
}

// cutFor returns why this side ended the connection, or nil.
func (w *conn) cutFor() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cause
}

// close ends the connection cleanly, or after closeGrace anyhow.
func (w *conn) close(cause error) {
	w.because(cause)
	grace := time.AfterFunc(closeGrace, func() { w.cut(cause) })
	defer grace.Stop()
	_ = w.client.Close() // closed either way
	_ = w.raw.Close()
}

// until cuts the connection when ctx ends before do returns.
func (w *conn) until(ctx context.Context, do func() error) error {
	watching := context.AfterFunc(ctx, func() { w.cut(ctx.Err()) })
	err := do()
	if !watching() {
		return ctx.Err()
	}
	return err
}
