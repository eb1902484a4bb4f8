package waycli

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/waybill-go/waybill/dashboard"
)

// dashboardUsers are the users of a file, by their ways to authenticate.
type dashboardUsers struct {
	passwords map[string]dashboard.User
	tokens    map[string]dashboard.Principal // by the hexadecimal SHA-256 sum of the token
	all       map[string]dashboard.Principal // by name, for proxies
}

// readDashboardUsers reads a file of users.
func readDashboardUsers(name string) (*dashboardUsers, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	u := &dashboardUsers{map[string]dashboard.User{}, map[string]dashboard.Principal{}, map[string]dashboard.Principal{}}
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := u.add(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(u.all) == 0 {
		return nil, errors.New("the file has no user")
	}
	return u, nil
}

// add adds the user of a line.
func (u *dashboardUsers) add(line string) error {
	parts := strings.Split(line, ":")
	if len(parts) != 3 {
		return fmt.Errorf("it has %d parts between colons, want 3", len(parts))
	}
	name, bodies := strings.CutSuffix(parts[2], "+bodies")
	role, err := dashboard.ParseRole(name)
	switch {
	case err != nil:
		return err
	case parts[0] == "":
		return errors.New("it has no name")
	}
	p := dashboard.Principal{Name: parts[0], Role: role, Bodies: bodies}
	if had, ok := u.all[p.Name]; ok && had != p {
		return fmt.Errorf("%s has another role in an earlier line", p.Name)
	}
	u.all[p.Name] = p
	sum, token := strings.CutPrefix(parts[1], "sha256=")
	switch {
	case token:
		u.tokens[sum] = p
	case parts[1] != "proxy":
		u.passwords[p.Name] = dashboard.User{PasswordHash: parts[1], Role: role, Bodies: bodies}
	}
	return nil
}

// authenticate returns the authentication that the flags ask for, or nil without any.
func (f dashboardFlags) authenticate() (dashboard.Authenticate, error) {
	switch {
	case f.proxyHeader == "" != (len(f.proxyFrom) == 0):
		return nil, &Error{Usage, errors.New("--proxy-header and --proxy-from belong together"), ""}
	case f.users == "" && f.proxyHeader != "":
		return nil, &Error{Usage, errors.New("--proxy-header wants --users with the roles of the names"), ""}
	case f.users == "":
		return nil, nil
	}
	users, err := readDashboardUsers(f.users)
	if err != nil {
		return nil, fmt.Errorf("--users: %w", err)
	}
	var ways []dashboard.Authenticate
	if len(users.tokens) > 0 {
		bearer, err := dashboard.Bearer(users.tokens)
		if err != nil {
			return nil, fmt.Errorf("--users: %w", err)
		}
		ways = append(ways, bearer)
	}
	if f.proxyHeader != "" {
		proxy, err := users.proxy(f)
		if err != nil {
			return nil, err
		}
		ways = append(ways, proxy)
	}
	if len(users.passwords) > 0 {
		basic, err := dashboard.Basic(users.passwords)
		if err != nil {
			return nil, fmt.Errorf("--users: %w", err)
		}
		ways = append(ways, basic)
	}
	if len(ways) == 0 {
		return nil, errors.New("--users: all come through a proxy, and there is no --proxy-header")
	}
	return dashboard.FirstOf(ways...), nil
}

// proxy returns the authentication of the users that proxies name.
func (u *dashboardUsers) proxy(f dashboardFlags) (dashboard.Authenticate, error) {
	var from []netip.Prefix
	for _, text := range f.proxyFrom {
		p, err := netip.ParsePrefix(text)
		if one, addrErr := netip.ParseAddr(text); addrErr == nil {
			p, err = one.Prefix(one.BitLen())
		}
		if err != nil {
			return nil, &Error{Usage, fmt.Errorf("--proxy-from: %q is neither an address nor a range of them", text), "such as 10.0.0.5 or 10.0.0.0/8"}
		}
		from = append(from, p)
	}
	return dashboard.Proxy(f.proxyHeader, from, func(name string) (dashboard.Principal, error) {
		if p, ok := u.all[name]; ok {
			return p, nil
		}
		return dashboard.Principal{}, dashboard.ErrUnauthenticated
	})
}
