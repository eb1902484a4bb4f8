package dashboard

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/crypto/bcrypt"

	"github.com/waybill-go/waybill/admin"
)

// A Role is a set of rights. Each has those of the ones before it.
type Role int

const (
	Viewer   Role = iota + 1 // reads
	Operator                 // retries, edits and releases
	Admin                    // removes for good, and stops workers
)

var roles = map[Role]string{Viewer: "viewer", Operator: "operator", Admin: "admin"}

// String returns "viewer", "operator" or "admin".
func (r Role) String() string { return roles[r] }

// ParseRole returns the role of that name.
func ParseRole(name string) (Role, error) {
	for role, text := range roles {
		if text == name {
			return role, nil
		}
	}
	return 0, fmt.Errorf("unknown role %q: want viewer, operator or admin", name)
}

// A Principal is the user of a request.
type Principal struct {
	// Name stands in the audit.
	Name string
	Role Role
	// Bodies is the right to see bodies and headers of messages.
	Bodies bool
}

// Authenticate returns the user of a request. An error that wraps ErrUnauthenticated has
// the browser ask for a name and a password; it is never shown.
type Authenticate func(r *http.Request) (Principal, error)

// ErrUnauthenticated says that a request has no valid credentials.
var ErrUnauthenticated = errors.New("not authenticated")

// A User is a user of Basic.
type User struct {
	PasswordHash string // by bcrypt
	Role         Role
	Bodies       bool
}

// Basic authenticates by name and password.
func Basic(users map[string]User) (Authenticate, error) {
	unknown, err := bcrypt.GenerateFromPassword([]byte("nobody"), bcrypt.DefaultCost)
	if err != nil {
		return nil, err
	}
	for name, u := range users {
		if _, err := bcrypt.Cost([]byte(u.PasswordHash)); err != nil {
			return nil, fmt.Errorf("dashboard: user %q: the password hash is none of bcrypt, which begin with $2", name)
		}
		if u.Role.String() == "" || name == "" || strings.Contains(name, ":") {
			return nil, fmt.Errorf("dashboard: user %q: want a name without a colon, and a role", name)
		}
	}
	known := &passwords{turn: make(chan struct{}, 1), right: map[string][sha256.Size]byte{}}
	return func(r *http.Request) (Principal, error) {
		name, password, _ := r.BasicAuth()
		u, exists := users[name]
		if !exists {
			u.PasswordHash = string(unknown) // takes as long as that of a user
		}
		if !known.check(r.Context(), name, password, u.PasswordHash) || !exists {
			return Principal{}, ErrUnauthenticated
		}
		return Principal{Name: name, Role: u.Role, Bodies: u.Bodies}, nil
	}, nil
}

// passwords checks passwords, one at a time, so that guesses cost at most one processor. It
// remembers the last right one of each user.
type passwords struct {
	turn  chan struct{}
	mu    sync.Mutex
	right map[string][sha256.Size]byte // guarded by mu
}

func (p *passwords) check(ctx context.Context, name, password, hash string) bool {
	sum := sha256.Sum256([]byte(hash + "\x00" + password))
	p.mu.Lock()
	last, ok := p.right[name]
	p.mu.Unlock()
	if ok && subtle.ConstantTimeCompare(last[:], sum[:]) == 1 {
		return true
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return false
	}
	if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.right[name] = sum
	return true
}

// Bearer authenticates by the tokens of Authorization headers, given by their SHA-256 sums
// in hexadecimal.
func Bearer(tokens map[string]Principal) (Authenticate, error) {
	byHash := make(map[[sha256.Size]byte]Principal, len(tokens))
	for text, p := range tokens {
		sum, err := hex.DecodeString(text)
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("dashboard: token of %s: want its SHA-256 sum, 64 hexadecimal digits", p.Name)
		}
		byHash[[sha256.Size]byte(sum)] = p
	}
	return func(r *http.Request) (Principal, error) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(token))
		for want, p := range byHash {
			if ok && subtle.ConstantTimeCompare(want[:], got[:]) == 1 {
				return p, nil
			}
		}
		return Principal{}, ErrUnauthenticated
	}, nil
}

// Proxy authenticates by a header that a proxy has set to the name of the user. It is
// believed of connections from the proxies' addresses alone; user returns the rights of a
// name.
func Proxy(header string, proxies []netip.Prefix, user func(name string) (Principal, error)) (Authenticate, error) {
	if header == "" || len(proxies) == 0 || user == nil {
		return nil, errors.New("dashboard: Proxy wants a header, the addresses of its proxies, and a function")
	}
	return func(r *http.Request) (Principal, error) {
		from, err := remote(r)
		names := r.Header.Values(header)
		if err != nil || len(names) != 1 || names[0] == "" {
			return Principal{}, ErrUnauthenticated
		}
		for _, p := range proxies {
			if p.Contains(from) {
				return user(names[0])
			}
		}
		return Principal{}, ErrUnauthenticated
	}, nil
}

// FirstOf authenticates by the first of several that knows the request.
func FirstOf(several ...Authenticate) Authenticate {
	return func(r *http.Request) (p Principal, err error) {
		err = ErrUnauthenticated
		for _, a := range several {
			if p, err = a(r); err == nil || !errors.Is(err, ErrUnauthenticated) {
				return p, err
			}
		}
		return p, err
	}
}

// remote returns the address of the connection.
func remote(r *http.Request) (netip.Addr, error) {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	return at.Addr().Unmap(), err
}

// errNotLocal refuses a request to a dashboard without authentication.
var errNotLocal = &Error{Status: http.StatusForbidden, Problem: "this dashboard has no authentication, and answers requests from its own machine only", Remedy: "give it users, or open it there as 127.0.0.1 or localhost"}

// local is the authentication of a dashboard without one. The Host is checked, too: another
// site could have its name lead here.
func local(r *http.Request) (Principal, error) {
	from, err := remote(r)
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	to, badIP := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil || !from.IsLoopback() || host != "localhost" && (badIP != nil || !to.IsLoopback()) {
		return Principal{}, errNotLocal
	}
	return Principal{Name: admin.Actor(), Role: Admin, Bodies: true}, nil
}

// ListenAllowed returns an error for an address that others can reach, unless the dashboard
// has authentication.
func ListenAllowed(address string, authenticated bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	ip, err := netip.ParseAddr(host)
	if authenticated || host == "localhost" || err == nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("address %q: others can reach it, and the dashboard has no authentication", address)
}
