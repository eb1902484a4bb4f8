package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

const (
	messageName = "order.placed"
	bodySize    = 200
	// loadBatch is how many messages a transaction writes while rows are loaded.
	loadBatch = 100
)

// placed is the message of all contestants: 200 bytes as JSON.
type placed struct {
	N   int    `json:"n"`
	Key string `json:"key"`
	Pad string `json:"pad"`
}

func newPlaced(n, keys int) placed {
	m := placed{N: n, Key: fmt.Sprint("key-", n%keys)}
	bare := len(fmt.Sprintf(`{"n":%d,"key":%q,"pad":""}`, m.N, m.Key))
	m.Pad = strings.Repeat("x", bodySize-bare)
	return m
}

// MessageName and PartitionKey are for waybill, Kind is for River.
func (placed) MessageName() string    { return messageName }
func (m placed) PartitionKey() string { return m.Key }
func (placed) Kind() string           { return messageName }

func (m placed) body() ([]byte, error) { return json.Marshal(m) }

// batches calls fn with n messages, in order, so many at a time.
func batches(n, keys, size int, fn func([]placed) error) error {
	for from := 0; from < n; from += size {
		var batch []placed
		for i := from; i < min(from+size, n); i++ {
			batch = append(batch, newPlaced(i, keys))
		}
		if err := fn(batch); err != nil {
			return err
		}
	}
	return nil
}
