package waysqlite

import (
	"context"
	"database/sql"
	"sync"
)

// statements are prepared on the connection that writes, for all transactions: parsing one
// costs more than running it on a few rows. A statement is prepared for its second
// transaction.
type statements struct {
	mu     sync.Mutex
	of     map[string]*sql.Stmt
	wanted []string // were not there for the last transactions
}

// get returns a prepared statement, or nil.
func (s *statements) get(query string) *sql.Stmt {
	s.mu.Lock()
	defer s.mu.Unlock()
	stmt := s.of[query]
	if stmt == nil {
		s.wanted = append(s.wanted, query)
	}
	return stmt
}

// prepare prepares the wanted statements. No transaction of the caller's is open, which would
// have the connection.
func (s *statements) prepare(ctx context.Context, pool *sql.DB) {
	s.mu.Lock()
	wanted := s.wanted
	s.wanted = nil
	s.mu.Unlock() // the holder of the connection may need it
	for _, query := range wanted {
		stmt, err := pool.PrepareContext(ctx, query)
		if err == nil { // else the transaction reports it
			s.keep(query, stmt)
		}
	}
}

func (s *statements) keep(query string, stmt *sql.Stmt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[query] != nil {
		_ = stmt.Close()
		return
	}
	s.of[query] = stmt
}

func (s *statements) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for query, stmt := range s.of {
		_ = stmt.Close()
		delete(s.of, query)
	}
}
