package testserver

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/waybill-go/waybill/internal/test/testserver/port"
)

const (
	rabbitVariable    = "WAYBILL_TEST_RABBITMQ"
	rabbitAPIVariable = "WAYBILL_TEST_RABBITMQ_API"
	rabbitMissing     = "apt-get install rabbitmq-server, or set " + rabbitVariable + " to the URL of a server and " +
		rabbitAPIVariable + " to that of its management plugin"
	// The script itself; what Debian has in the PATH insists on root.
	rabbitPrograms = "/usr/lib/rabbitmq/bin"
)

// newRabbitMQ starts a RabbitMQ with the user waybill, password waybill, and a
// virtual host waybill, which is that of its url.
func newRabbitMQ(settings map[string]string) (*instance, error) {
	return attempts(func() (*instance, error) {
		in, err := newInstance("rabbitmq", "rabbitmq")
		if err != nil {
			return nil, err
		}
		if err := in.becomeRabbitMQ(settings); err != nil {
			return nil, errors.Join(err, in.remove())
		}
		return in, nil
	})
}

func (in *instance) becomeRabbitMQ(settings map[string]string) error {
	server, err := program("rabbitmq-server", rabbitPrograms, rabbitMissing)
	if err != nil {
		return err
	}
	epmd, err := program("epmd", "/usr/lib/erlang/bin", rabbitMissing)
	if err != nil {
		return err
	}
	var amqp, http, names, nodes int
	for _, p := range []*int{&amqp, &http, &names, &nodes} {
		if *p, err = port.Free(); err != nil {
			return err
		}
	}
	conf := map[string]string{
		"listeners.tcp.1":          fmt.Sprintf("127.0.0.1:%d", amqp),
		"management.tcp.ip":        "127.0.0.1",
		"management.tcp.port":      fmt.Sprint(http),
		"default_user":             "waybill",
		"default_pass":             "waybill",
		"default_vhost":            "waybill",
		"loopback_users":           "none",
		"log.console":              "true",
		"log.console.level":        "warning",
		"log.file":                 "false",
		"disk_free_limit.absolute": "50MB", // no alarm on a small disk
	}
	maps.Copy(conf, settings)
	confFile, err := in.write("rabbitmq.conf", lines(conf))
	if err != nil {
		return err
	}
	plugins, err := in.write("enabled_plugins", "[rabbitmq_management].\n")
	if err != nil {
		return err
	}
	in.url = fmt.Sprintf("amqp://waybill:waybill@127.0.0.1:%d/waybill", amqp)
	in.api = fmt.Sprintf("http://waybill:waybill@127.0.0.1:%d", http)

	// A private port mapper, which dies with the server: the one that the Erlang
	// VM would start is a daemon and stays, and all nodes share it.
	mapper := []string{fmt.Sprintf("ERL_EPMD_PORT=%d", names), "ERL_EPMD_ADDRESS=127.0.0.1"}
	in.commands = []command{{
		path:    epmd,
		env:     mapper,
		answers: func() error { return dial(names) },
	}, {
		path: server,
		env: append(mapper,
			"RABBITMQ_NODENAME=waybill@localhost",
			fmt.Sprintf("RABBITMQ_DIST_PORT=%d", nodes),
			"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
			"RABBITMQ_CONF_ENV_FILE="+filepath.Join(in.dir, "rabbitmq-env.conf"),
			"RABBITMQ_CONFIG_FILE="+confFile,
			"RABBITMQ_ADVANCED_CONFIG_FILE="+filepath.Join(in.dir, "advanced.config"),
			"RABBITMQ_GENERATED_CONFIG_DIR="+filepath.Join(in.dir, "config"),
			"RABBITMQ_ENABLED_PLUGINS_FILE="+plugins,
			"RABBITMQ_PLUGINS_EXPAND_DIR="+filepath.Join(in.dir, "plugins"),
			"RABBITMQ_FEATURE_FLAGS_FILE="+filepath.Join(in.dir, "feature_flags"),
			"RABBITMQ_MNESIA_BASE="+in.dir,
			"RABBITMQ_MNESIA_DIR="+filepath.Join(in.dir, "data"),
			"RABBITMQ_LOG_BASE="+in.dir,
		),
		quit: syscall.SIGTERM,
		answers: func() error {
			if err := speakAMQP(amqp); err != nil { // the last that RabbitMQ opens
				return err
			}
			return manage(in.api, "GET", "/api/whoami", "")
		},
	}}
	return in.start()
}

// settle has RabbitMQ commit something more. It confirms a declaration when its
// transaction is on disk, but Mnesia may write two seconds later that this one
// was committed, or with the next one. Killed before, it undoes the transaction
// when it starts.
func (in *instance) settle() error {
	return manage(in.api, "PUT", "/api/global-parameters/settled", fmt.Sprintf(`{"name":"settled","value":%d}`, time.Now().UnixNano()))
}

// speakAMQP offers the protocol's version and wants an answer.
func speakAMQP(port int) error {
	conn, err := net.DialTimeout("tcp4", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, "AMQP\x00\x00\x09\x01"); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

func dial(port int) error {
	conn, err := net.DialTimeout("tcp4", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}
