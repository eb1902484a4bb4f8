package deploy_test

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write kubernetes/shop.yaml")

// secrets stand in for the variables that each file takes from elsewhere.
var secrets = map[string]string{"WAYBILL_DATABASE_URL": "postgres://shop:x@postgres/shop", "WAYBILL_BROKER_URL": "amqp://shop:x@rabbitmq"}

// check fails unless there are n processes, all of which would start and stop.
func check(t *testing.T, n int, all []process) {
	t.Helper()
	if len(all) != n {
		t.Errorf("%d processes, want %d", len(all), n)
	}
	known := variables(t)
	for _, p := range all {
		for _, problem := range p.problems(known) {
			t.Error(problem)
		}
	}
}

func TestComposeFile(t *testing.T) {
	doc := documents(t, read(t, "compose.yaml"))[0]
	var all []process
	services, _ := doc.at("services").v.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s := doc.at("services", name)
		if s.at("image").text() != "shop:1" {
			continue
		}
		p := process{where: name, args: s.at("command").texts(), env: map[string]string{}}
		env, _ := s.at("environment").v.(map[string]any)
		for key, value := range env {
			p.env[key] = regexp.MustCompile(`\$\{\w+[^}]*\}`).ReplaceAllString(object{value}.text(), "x")
		}
		if name != "schema" {
			p.grace = s.at("stop_grace_period").seconds(t)
			if s.at("restart").text() != "always" {
				t.Errorf("%s does not start again", name)
			}
		}
		all = append(all, p)
		if test := s.at("healthcheck", "test").texts(); len(test) > 0 {
			all = append(all, process{where: name + ": healthcheck", args: test[2:], env: p.env})
		}
	}
	check(t, 6+4, all)
}

func TestDockerfile(t *testing.T) {
	text := read(t, "Dockerfile")
	line := func(pattern string) string {
		all := regexp.MustCompile("(?m)^"+pattern+"$").FindAllStringSubmatch(text, -1)
		if len(all) == 0 {
			t.Fatalf("no line %s", pattern)
		}
		return all[len(all)-1][1]
	}
	if _, version, _ := strings.Cut(read(t, "../go.mod"), "\ngo "); !strings.HasPrefix(version, line(`FROM golang:([\d.]+) AS build`)) {
		t.Errorf("built by Go %s, which is not that of go.mod", line(`FROM golang:([\d.]+) AS build`))
	}
	if base := line(`FROM (\S+)`); base != "scratch" {
		t.Errorf("the image is made from %s", base)
	}
	if user := line(`USER (\d+):\d+`); user == "0" {
		t.Error("it runs as root")
	}
	for _, file := range []string{line(`ARG PROGRAM=\./(.*)`), line(`ARG CONFIG=(.*)`)} {
		if _, err := os.Stat(filepath.Join("..", file)); err != nil {
			t.Error(err)
		}
	}
	env := maps.Clone(secrets)
	for _, pair := range strings.Fields(line(`ENV (.*)`)) {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	var args []string
	if err := json.Unmarshal([]byte(line(`CMD (.*)`)), &args); err != nil {
		t.Fatal(err)
	}
	check(t, 1, []process{{where: "Dockerfile", args: args, env: env}})
}

func TestSystemdUnits(t *testing.T) {
	files, err := filepath.Glob("systemd/*.service")
	if err != nil {
		t.Fatal(err)
	}
	var all []process
	for _, file := range files {
		settings := map[string]string{}
		for line := range strings.Lines(read(t, file)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
				settings[key] = value
			}
		}
		p := process{where: file, env: maps.Clone(secrets), grace: object{settings["TimeoutStopSec"]}.seconds(t)}
		name, value, _ := strings.Cut(settings["Environment"], "=")
		p.env[name] = value
		p.args = strings.Fields(strings.ReplaceAll(settings["ExecStart"], "%i", "1"))[1:]
		all = append(all, p)
		watchdog, _ := strconv.Atoi(settings["WatchdogSec"])
		if p.args[0] != "dashboard" && (settings["Type"] != "notify" || settings["KillMode"] != "mixed" || watchdog < 60) {
			t.Errorf("%s: Type %s, KillMode %s, WatchdogSec %d, want notify, mixed and 60 or more", file, settings["Type"], settings["KillMode"], watchdog)
		}
		if settings["Restart"] != "always" || settings["User"] == "" {
			t.Errorf("%s: Restart=%s, User=%s", file, settings["Restart"], settings["User"])
		}
	}
	check(t, 5, all)
}

func TestSupervisorPrograms(t *testing.T) {
	var all []process
	for _, section := range strings.Split(read(t, "supervisor/shop.conf"), "[program:")[1:] {
		settings := map[string]string{}
		for line := range strings.Lines(section) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			settings[key] = value
		}
		where, _, _ := strings.Cut(section, "]")
		p := process{where: where, env: maps.Clone(secrets), grace: object{settings["stopwaitsecs"]}.seconds(t)}
		name, value, _ := strings.Cut(settings["environment"], "=")
		p.env[name] = strings.Trim(value, `"`)
		p.args = strings.Fields(strings.ReplaceAll(settings["command"], "%(process_num)d", "1"))[1:]
		if settings["autorestart"] != "true" || settings["stopsignal"] != "TERM" {
			t.Errorf("%s: autorestart=%s, stopsignal=%s", where, settings["autorestart"], settings["stopsignal"])
		}
		all = append(all, p)
	}
	check(t, 4, all)
}

func TestChart(t *testing.T) {
	var all []process
	for _, doc := range documents(t, render(t)) {
		pod := doc.at("spec", "template", "spec")
		c := pod.at("containers", 0)
		if c.v == nil {
			continue
		}
		p := process{where: doc.at("metadata", "name").text(), args: c.at("args").texts(), env: maps.Clone(secrets)}
		for i := range c.at("env").texts() {
			p.env[c.at("env", i, "name").text()] = c.at("env", i, "value").text()
		}
		if doc.at("kind").text() == "Deployment" {
			p.grace = time.Second * time.Duration(atoi(t, pod.at("terminationGracePeriodSeconds").text()))
			if pod.at("securityContext", "runAsNonRoot").text() != "true" {
				t.Errorf("%s may run as root", p.where)
			}
			if memory := atoi(t, strings.TrimSuffix(c.at("resources", "limits", "memory").text(), "Mi")); uint64(memory)<<20 <= shopWith(t, secrets).Limits.Memory {
				t.Errorf("%s: a limit of %d MiB kills it before it ends at its own", p.where, memory)
			}
		}
		probed := c.at("livenessProbe", "httpGet", "path").text() == "/healthz" && c.at("readinessProbe", "httpGet", "path").text() == "/readyz"
		if p.grace > 0 && p.args[0] != "dashboard" && (!probed || !slices.Contains(p.args, "--admin-listen")) {
			t.Errorf("%s has no probes of its admin listener", p.where)
		}
		all = append(all, p)
	}
	check(t, 7, all)
}

// The plain manifests are the chart with its values.
func TestManifestsAreTheChart(t *testing.T) {
	const file = "kubernetes/shop.yaml"
	want := "# helm/shop with its values; `go test ./deploy -update` writes it.\n" + render(t)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, file) != want {
		t.Errorf("%s is not the chart: run go test ./deploy -update", file)
	}
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Error(err)
	}
	return n
}

// The checks find each kind of mistake.
func TestMistakesAreFound(t *testing.T) {
	good := process{where: "p", args: []string{"consume", "orders"}, env: secrets, grace: 40 * time.Second}
	for want, change := range map[string]func(p *process){
		"no such command":        func(p *process) { p.args = []string{"consum"} },
		"unknown flag":           func(p *process) { p.args = append(p.args, "--admin") },
		"no worker of transport": func(p *process) { p.args = []string{"consume", "order"} },
		"no part":                func(p *process) { p.args = []string{"run", "worker"} },
		"nothing reads":          func(p *process) { p.env["WAYBILL_DATABASE"] = "x" },
		"environment":            func(p *process) { p.env["WAYBILL_DATABASE_URL"] = "postgres://h/d?sslmod=disable" },
		"it is killed after 30s": func(p *process) { p.grace = 30 * time.Second },
	} {
		p := good
		p.args, p.env = slices.Clone(good.args), maps.Clone(good.env)
		if change(&p); !strings.Contains(strings.Join(p.problems(variables(t)), "\n"), want) {
			t.Errorf("%q is not found: %q", want, p.problems(variables(t)))
		}
	}
	if found := good.problems(variables(t)); len(found) > 0 {
		t.Errorf("nothing is wrong, and found: %q", found)
	}
}
