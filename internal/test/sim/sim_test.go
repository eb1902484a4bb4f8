package sim

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	seed  = flag.Uint64("seed", 0, "run this seed alone, and print what happens")
	seeds = flag.Int("seeds", 2000, "how many seeds to run")
	slow  = 1 // divides the number of runs; more than 1 with the race detector
	bug   = flag.String("mutant", "", "plant this bug in the run of -seed")
)

// On every seed no law is broken, and each crash point is met often.
func TestNoLawIsBroken(t *testing.T) {
	if *seed > 0 {
		v := Run(*seed, *bug, func(line string) { fmt.Println(line) })
		t.Logf("%+v", v)
		if v.Broken != "" {
			t.Errorf("seed %d: %s", *seed, v.Broken)
		}
		return
	}
	hits, committed, duplicates, faults := map[string]int{}, 0, 0, 0
	for s := range uint64(*seeds / slow) {
		v := Run(s+1, "", nil)
		if v.Broken != "" {
			t.Fatalf("seed %d: %s\nreplay it with: go test ./internal/test/sim -run NoLaw -v -seed %[1]d", s+1, v.Broken)
		}
		for step, n := range v.Hits {
			hits[step] += n
		}
		committed, duplicates, faults = committed+v.Committed, duplicates+v.Duplicates, faults+v.Faults
	}
	t.Logf("%d seeds: %d messages committed, %d duplicates, %d faults; kills before %v", *seeds/slow, committed, duplicates, faults, hits)
	if duplicates == 0 {
		t.Error("no duplicates: the faults do nothing")
	}
	for _, step := range steps {
		if want := 10; slow == 1 && hits[step] < want {
			t.Errorf("killed %d times before %q, want %d times", hits[step], step, want)
		}
		delete(hits, step)
	}
	if len(hits) > 0 {
		t.Errorf("unknown steps %v", hits)
	}
}

// steps are the crash points.
var steps = []string{
	"dispatch lock", "dispatch insert", "dispatch commit", "dispatch rollback",
	"claim", "claim snapshot", "claim lock", "claim state", "claim read", "claim rollback", "publish", "settle delete", "settle commit", "settled",
	"retry claim", "settle lock", "settle retries", "release", "release lock", "release rows", "release commit",
	"store check", "store add", "stored", "claim retries", "store ack", "store replay", "store replay commit", "store release",
	"connect", "inbox insert", "inbox rollback", "handler's effect", "handler's commit", "handler's rollback", "settle delivery",
}

// Each mutant is noticed within a median of 200 seeds.
func TestEveryMutantIsNoticed(t *testing.T) {
	for _, name := range Mutants() {
		t.Run(name, func(t *testing.T) {
			var took []int
			for trial := range max(9/slow, 1) {
				for n := 1; ; n++ {
					if v := Run(uint64(10_000*(trial+1)+n), name, nil); v.Broken != "" {
						took = append(took, n)
						break
					}
					if n == 2000 {
						t.Fatalf("not noticed in %d seeds", n)
					}
				}
			}
			slices.Sort(took)
			t.Logf("noticed after %v seeds", took)
			if median := took[len(took)/2]; median > 200 && slow == 1 {
				t.Errorf("noticed after a median of %d seeds, want 200", median)
			}
		})
	}
}

// A seed determines its run.
func TestSeedsReplay(t *testing.T) {
	for s := range uint64(20) {
		var a, b strings.Builder
		first := Run(s, "", func(line string) { a.WriteString(line) })
		second := Run(s, "", func(line string) { b.WriteString(line) })
		if fmt.Sprint(first) != fmt.Sprint(second) || a.String() != b.String() {
			t.Errorf("seed %d: %v, then %v", s, first, second)
		}
	}
}

// The seeds in testdata/seeds once broke a law, and must not again.
func TestKeptSeeds(t *testing.T) {
	kept, err := os.ReadFile("testdata/seeds")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(kept)) {
		text, why, _ := strings.Cut(strings.TrimSpace(line), " ")
		s, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if v := Run(s, "", nil); v.Broken != "" {
			t.Errorf("seed %d (%s): %s", s, why, v.Broken)
		}
	}
}
