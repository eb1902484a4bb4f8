package testserver

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// manager keeps no connections, so that tests which look for leaked goroutines
// find none.
var manager = &http.Client{
	Timeout:   30 * time.Second,
	Transport: &http.Transport{DisableKeepAlives: true},
}

// manage asks RabbitMQ's management plugin for something. The plugin takes
// milliseconds where rabbitmqctl starts an Erlang VM for a second.
func manage(api, method, path, body string) error {
	req, err := http.NewRequest(method, strings.TrimSuffix(api, "/")+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := manager.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return fmt.Errorf("%s %s of RabbitMQ's management: %s\n%s", method, path, resp.Status, text)
	}
	return nil
}
