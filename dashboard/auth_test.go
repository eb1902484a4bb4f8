package dashboard_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/waybill-go/waybill/dashboard"
)

func TestUsersAreThoseOfTheirPasswords(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("tea"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	basic, err := dashboard.Basic(map[string]dashboard.User{"ann": {PasswordHash: string(hash), Role: dashboard.Operator, Bodies: true}})
	if err != nil {
		t.Fatal(err)
	}
	as := func(name, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(name, password) }
	}
	f := newFixture(t, dashboard.Config{Authenticate: basic})
	f.letters(1, "refused", `{}`)
	for range 2 { // the second time from memory
		for _, tt := range []struct {
			name, password string
			want           int
		}{{"ann", "tea", 200}, {"ann", "coffee", 401}, {"ann", "", 401}, {"bob", "tea", 401}, {"", "", 401}, {"bob", "nobody", 401}} {
			if res, _ := f.do("GET", "/", nil, as(tt.name, tt.password)); res.StatusCode != tt.want {
				t.Errorf("%s with %q: %s, want %d", tt.name, tt.password, res.Status, tt.want)
			}
		}
	}
	f.do("POST", "/failed/retry", url.Values{"number": {"1"}, "count": {"1"}}, as("ann", "tea"))
	for range 2000 {
		if audit, err := f.db.Audit(t.Context(), 0, 1); err != nil || len(audit) == 1 {
			if err != nil || audit[0].Actor != "ann@dashboard" {
				t.Errorf("Audit = %+v, %v", audit, err)
			}
			return
		}
	}
	t.Error("the retry is not in the audit")
}

func TestProxyIsBelievedAtItsAddress(t *testing.T) {
	known := func(name string) (dashboard.Principal, error) {
		return dashboard.Principal{Name: name, Role: dashboard.Viewer}, nil
	}
	proxy, err := dashboard.Proxy("X-User", []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, known)
	if err != nil {
		t.Fatal(err)
	}
	both := dashboard.FirstOf(bearerOf(t, map[string]dashboard.Principal{"t": {Name: "robot", Role: dashboard.Admin}}), proxy)
	for _, tt := range []struct{ from, user, token, want string }{
		{"10.1.2.3:99", "ann", "", "ann"}, {"[::ffff:10.1.2.3]:99", "ann", "", "ann"}, {"10.2.2.3:99", "ann", "", ""}, {"10.1.2.3:99", "", "", ""},
		{"192.0.2.1:99", "ann", "t", "robot"}, {"192.0.2.1:99", "", "", ""}, {"", "ann", "", ""},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.from
		r.Header.Set("X-User", tt.user)
		if tt.token != "" {
			r.Header.Set("Authorization", "Bearer "+tt.token)
		}
		p, err := both(r)
		if p.Name != tt.want || (tt.want == "") != errors.Is(err, dashboard.ErrUnauthenticated) {
			t.Errorf("%+v: %+v, %v", tt, p, err)
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.1.2.3:99"
	r.Header["X-User"] = []string{"ann", "root"}
	if p, err := proxy(r); err == nil {
		t.Errorf("two names are %+v", p)
	}
}
