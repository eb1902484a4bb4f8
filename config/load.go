package config

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// DefaultFile is the file that Load looks for where none is named.
const DefaultFile = "waybill.yaml"

// misnamedFile is refused where DefaultFile is missing: the defaults would run in its place.
const misnamedFile = "waybill.yml"

// Load reads the file at path. An empty path means the file that the
// environment variable WAYBILL_CONFIG names; if it is unset or empty,
// ./waybill.yaml; and if there is no such file, the defaults, unless there is a
// ./waybill.yml. A file that was named has to exist. Nil for getenv means os.LookupEnv.
func Load(path string, getenv func(string) (string, bool)) (*Config, error) {
	if getenv == nil {
		getenv = os.LookupEnv
	}
	var hint string
	if v, _ := getenv("WAYBILL_CONFIG"); path == "" && v != "" {
		path, hint = v, "named by WAYBILL_CONFIG"
	}
	data, err := readAtMost(cmp.Or(path, DefaultFile), maxBytes)
	switch {
	case path == "" && errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(misnamedFile); err == nil {
			return nil, &Error{File: misnamedFile, Problem: "this file is not read, and there is no " + DefaultFile, Hint: "rename it, or give its path"}
		}
		return Parse("", nil, getenv)
	case errors.Is(err, fs.ErrNotExist):
		return nil, &Error{File: path, Problem: "there is no such file", Hint: cmp.Or(hint, "give the path of one, or leave it out: then "+DefaultFile+" is read if it exists"), cause: err}
	case err != nil:
		return nil, &Error{File: cmp.Or(path, DefaultFile), Problem: err.Error(), Hint: join("; ", hint, mayRead), cause: err}
	}
	return Parse(cmp.Or(path, DefaultFile), data, getenv)
}

// Parse reads the content of a file. Its name stands in errors and origins,
// and ${file:...} starts from its directory. All mistakes are reported at once,
// unless it is not YAML at all. Nil for getenv means os.LookupEnv.
func Parse(name string, data []byte, getenv func(string) (string, bool)) (*Config, error) {
	if getenv == nil {
		getenv = os.LookupEnv
	}
	root, err := parseTree(data)
	if err != nil {
		err.File = name
		return nil, err
	}
	c := defaults()
	r := &reader{
		file:    name,
		expand:  expander{getenv: getenv, dir: filepath.Dir(name)}.expand,
		lines:   c.lines,
		origins: c.origins,
		written: written{},
	}
	c.file = name
	c.read(r)(root, nil)

	// A value that could not be read has its default now: errors about it and its keys are
	// left out.
	unread := map[string]bool{}
	for _, e := range r.errs {
		unread[e.Path] = true
	}
	for _, e := range c.problems(r.written) {
		inside := func(opaque string) bool { return strings.HasPrefix(e.Path, opaque) }
		if !unread[e.Path] && !slices.ContainsFunc(r.opaque, inside) {
			r.errs = append(r.errs, e)
		}
	}
	if len(r.errs) > 0 {
		return nil, joined(r.errs)
	}
	return c, nil
}

// read is the schema of the file.
func (c *Config) read(r *reader) field {
	return r.group(map[string]field{
		"database": func(n *node, at keyPath) {
			if n == nil {
				n = &node{kind: scalar, text: defaultDatabase}
			}
			r.dsn(&c.Database)(n, at)
		},
		"transports": r.each(func(name string, n *node, at keyPath) {
			t := Transport{Retry: DefaultRetry()}
			t.read(r)(n, at)
			c.Transports[name] = t
		}),
		"outbox": r.group(map[string]field{
			"to":           r.text(&c.Outbox.To),
			"ordering":     oneOf(r, &c.Outbox.Ordering, Strict, Pipelined),
			"on_exhausted": oneOf(r, &c.Outbox.OnExhausted, Block, Park, Skip),
			"retry":        r.group(map[string]field{"max_attempts": r.int(&c.Outbox.Retry.MaxAttempts)}),

			"idle_timeout":     r.duration(&c.Outbox.IdleTimeout),
			"publish_deadline": r.duration(&c.Outbox.PublishDeadline),
			"routes":           named(r, &c.Outbox.Routes, (*Route).read),
		}),
		"routing": r.each(func(pattern string, n *node, at keyPath) {
			var names []string
			r.list(&names)(n, at)
			c.Routing[pattern] = names
		}),
		"messages": r.each(func(name string, n *node, at keyPath) {
			r.group(nil)(n, at)
			c.Messages[name] = Message{}
		}),
		"inbox":     r.group(map[string]field{"retention": r.duration(&c.Inbox.Retention)}),
		"workers":   named(r, &c.Workers, (*Worker).read),
		"schedules": named(r, &c.Schedules, (*Schedule).read),
		"limits": r.group(map[string]field{
			"time":     r.duration(&c.Limits.Time),
			"memory":   r.size(&c.Limits.Memory),
			"failures": r.int(&c.Limits.Failures),
			"drain":    r.duration(&c.Limits.Drain),

			"concurrency": r.int(&c.Limits.Concurrency),
		}),
		"admin": r.group(map[string]field{
			"listen": r.text(&c.Admin.Listen),
			"pprof":  r.bool(&c.Admin.Pprof),
		}),

		"failure_transport": r.text(&c.FailureTransport),
		"log":               r.group(map[string]field{"messages": oneOf(r, &c.Log.Messages, LogDebug, LogInfo)}),
		"history":           r.not(&c.NoHistory),
	})
}

func (t *Transport) read(r *reader) field {
	return r.group(map[string]field{
		"dsn": r.dsn(&t.DSN),
		"retry": r.group(map[string]field{
			"max_retries": r.int(&t.Retry.MaxRetries),
			"delay":       r.duration(&t.Retry.Delay),
			"multiplier":  r.float(&t.Retry.Multiplier),
			"max_delay":   r.duration(&t.Retry.MaxDelay),
			"jitter":      r.float(&t.Retry.Jitter),
		}),
		"store":             r.dsn(&t.Store),
		"failure_transport": r.text(&t.FailureTransport),
		"on_exhausted":      oneOf(r, &t.OnExhausted, Block, Park, Skip),
	})
}

func (w *Worker) read(r *reader) field {
	return r.group(map[string]field{
		"concurrency": r.int(&w.Concurrency),
		"prefetch":    r.int(&w.Prefetch),

		"priority":     r.int(&w.Priority),
		"weight":       r.int(&w.Weight),
		"slow_handler": r.duration(&w.SlowHandler),
	})
}

func (route *Route) read(r *reader) field {
	return r.group(map[string]field{
		"exchange":    r.text(&route.Exchange),
		"routing_key": r.text(&route.RoutingKey),

		"on_exhausted": oneOf(r, &route.OnExhausted, Block, Park, Skip),
	})
}

// joined sorts errors by line and joins them. They are all of one file.
func joined(errs []*Error) error {
	slices.SortStableFunc(errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path))
	})
	all := make([]error, len(errs))
	for i, e := range errs {
		all[i] = e
	}
	return errors.Join(all...)
}
