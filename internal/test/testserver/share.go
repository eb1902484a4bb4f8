package testserver

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
)

// sharedPostgres returns the DSN of the server that all tests share, which is
// started on the first call unless the environment names one. It lives as long
// as the process; the watcher ends it.
var sharedPostgres = sync.OnceValues(func() (string, error) {
	if dsn := os.Getenv(postgresVariable); dsn != "" {
		return dsn, nil
	}
	in, err := newPostgres(map[string]string{"max_connections": "300"})
	if err != nil {
		return "", err
	}
	keep(in)
	return in.url, nil
})

var sharedMariaDB = sync.OnceValues(func() (string, error) {
	if dsn := os.Getenv(mariaVariable); dsn != "" {
		return dsn, nil
	}
	in, err := newMariaDB(map[string]string{"max_connections": "300"}, plain)
	if err != nil {
		return "", err
	}
	keep(in)
	return in.url, nil
})

// A broker is a RabbitMQ, as clients and as administrators see it.
type broker struct{ url, api string }

var sharedRabbitMQ = sync.OnceValues(func() (broker, error) {
	if dsn := os.Getenv(rabbitVariable); dsn != "" {
		if api := os.Getenv(rabbitAPIVariable); api != "" {
			return broker{dsn, api}, nil
		}
		u, err := url.Parse(dsn)
		if err != nil {
			return broker{}, fmt.Errorf("%s is not a URL", rabbitVariable)
		}
		api := url.URL{Scheme: "http", User: u.User, Host: u.Hostname() + ":15672"}
		return broker{dsn, api.String()}, nil
	}
	in, err := newRabbitMQ(nil)
	if err != nil {
		return broker{}, err
	}
	keep(in)
	return broker{in.url, in.api}, nil
})

// Share starts what tests share, unless the environment names it, and returns
// the variables that name it to other processes. The caller calls end when
// those are done; end is never nil.
func Share() (env []string, end func() error, err error) {
	end = func() error { return errors.Join(removeKept()...) }
	var (
		starts          sync.WaitGroup
		postgres, maria string
		rabbit          broker
		errs            [3]error
	)
	starts.Go(func() { postgres, errs[0] = sharedPostgres() })
	starts.Go(func() { rabbit, errs[1] = sharedRabbitMQ() })
	starts.Go(func() { maria, errs[2] = sharedMariaDB() })
	starts.Wait()
	return []string{
		postgresVariable + "=" + postgres,
		mariaVariable + "=" + maria,
		rabbitVariable + "=" + rabbit.url,
		rabbitAPIVariable + "=" + rabbit.api,
	}, end, errors.Join(errs[:]...)
}

// kept are the shared servers that this process started, guarded by keepers.
var (
	keepers sync.Mutex
	kept    []*instance
)

func keep(in *instance) {
	keepers.Lock()
	defer keepers.Unlock()
	kept = append(kept, in)
}

func removeKept() []error {
	keepers.Lock()
	defer keepers.Unlock()
	var errs []error
	for _, in := range kept {
		errs = append(errs, in.remove())
	}
	kept = nil
	return errs
}
