package config

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// checkText refuses ambiguous text. After it, an @ can only stand between user and
// host: a password with a bare @, /, ? or # in it would otherwise end up in the host,
// the path or an option, and be printed. Its errors therefore quote no part of the
// text.
func checkText(rest string) error {
	at := strings.IndexByte(rest, '@')
	query := strings.IndexByte(rest, '?')
	_, decodes := unescape(rest)
	switch {
	case !utf8.ValidString(rest):
		return problem("not UTF-8", "percent-encode the bytes of a password")
	case strings.ContainsFunc(rest, func(r rune) bool { return r == ' ' || unicode.IsControl(r) }):
		return problem("a space, line break or control character", "remove it; a space is written %20")
	case strings.Contains(rest, "#"):
		return problem("a bare #", "write it as %23")
	case !decodes:
		return problem("a % that is not followed by two hexadecimal digits", "write it as %25")
	case strings.Count(rest, "@") > 1:
		return problem("more than one @", "write every @ but the one before the host as %40")
	case at >= 0 && strings.ContainsAny(rest[:at], "/?"):
		return problem("a bare / or ? before an @", "in user and password write / as %2F and ? as %3F, elsewhere @ as %40")
	case query >= 0 && strings.Contains(rest[query+1:], "?"):
		return problem("a bare ? in an option", "write it as %3F")
	}
	return nil
}

// decode decodes percent encoding. It refuses text that is not printable.
func decode(raw string) (string, bool) {
	s, ok := unescape(raw)
	return s, ok && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

var (
	nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	hostForm = regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:([0-9]{1,5}))?$`)
)

func (d *DSN) parseAddress(address string, spec scheme) error {
	if spec.shape != serverShape && strings.Contains(address, "@") {
		return problem(d.Scheme+" takes no user and password", "write an @ in a name as %40")
	}
	switch spec.shape {
	case serverShape:
		return d.parseServer(address, spec)
	case fileShape:
		return d.parseFile(address)
	case emptyShape:
		if address != "" {
			return problem(d.Scheme+" takes nothing after ://", "write "+d.Scheme+"://")
		}
		return nil
	}
	if address == "" && spec.shape == optionalName {
		return nil
	}
	word, ok := decode(address)
	if !ok || !nameForm.MatchString(word) {
		return problem(d.Scheme+" needs a name of letters, digits, '.', '_' and '-', at most 64", "such as "+d.Scheme+"://orders")
	}
	d.Host = word
	return nil
}

func (d *DSN) parseFile(address string) error {
	path, ok := decode(address)
	rooted := strings.HasPrefix(path, "/") || strings.HasPrefix(path, "./") || strings.HasPrefix(path, "../")
	if !ok || !rooted || strings.HasSuffix(path, "/") {
		return problem(d.Scheme+" needs the path of a file", "such as sqlite://./waybill.db, or sqlite:///var/lib/waybill.db from the root")
	}
	d.Path = path
	return nil
}

func (d *DSN) parseServer(address string, spec scheme) error {
	authority, path, _ := strings.Cut(address, "/")
	host := authority
	if credentials, after, ok := strings.Cut(authority, "@"); ok {
		host = after
		user, password, hasPassword := strings.Cut(credentials, ":")
		if d.User, ok = decode(user); !ok {
			return problem("a control character in the user", "")
		}
		if hasPassword {
			secret, _ := unescape(password) // any bytes are allowed
			d.password = &secret
		} else if spec.token && user != "" {
			return problem("a user without a password", "a token is a password: write "+d.Scheme+"://:TOKEN@host")
		}
	}
	if err := checkHosts(host, spec.many); err != nil {
		return err
	}
	d.Host = host
	return d.parsePath(path, spec)
}

// checkHosts checks the hosts. Its errors quote neither host nor port: in
// user:password without a host, the port is the password.
func checkHosts(hosts string, many bool) error {
	if hosts == "" {
		return problem("no host", "")
	}
	if !many && strings.Contains(hosts, ",") {
		return problem("more than one host", "this scheme takes one")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		m := hostForm.FindStringSubmatch(host)
		if m == nil {
			return problem("not a host, or a port that is not a number", "write [user[:password]@]host[:port]")
		}
		if port, _ := strconv.Atoi(m[3]); m[3] != "" && (port < 1 || port > 65535) {
			return problem("a port that is not between 1 and 65535", "")
		}
	}
	return nil
}

func (d *DSN) parsePath(path string, spec scheme) error {
	word, ok := decode(path)
	switch {
	case !ok:
		return problem("a control character in the path", "")
	case path != "" && spec.path == "":
		return problem(d.Scheme+" takes no path", "")
	case strings.Contains(path, "/"):
		return problem("more than one / after the host", "what follows it is the "+spec.path+"; a / in it is written %2F")
	}
	if _, err := strconv.ParseUint(word, 10, 31); err != nil && word != "" && spec.path == "database number" {
		return problem("a path that is not a database number", "such as "+d.Scheme+"://localhost/0")
	}
	d.Path = word
	return nil
}
