package arch

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// nounClause matches the clauses in place of a noun that make a sentence hard to search
// for: "what is blocked" for "blocked keys", "who has the lock" for "the holder".
var nounClause = regexp.MustCompile(`(?i)\b(what (is|are|was|were|has|have|had|it|they|a|an|the|comes|came|does|did|may|must|can|could|would|will|waits?|happens|happened|follows|goes|others?|every|no|each|this|that|he|she|we)\b` +
	`|who (is|are|has|have|had|does|may|waits?|holds?|reads?|looks?|was|uses?|wants?|can)\b` +
	`|those that\b|nobody\b|goes? on\b|of (its|their) own\b|in hand\b|whoever\b|anybody\b|somebody\b)`)

// The subject of a comment is a noun. At most one clause in 1000 words of comments is in
// place of one.
func TestCommentsHaveNounsForSubjects(t *testing.T) {
	words, found := 0, []string{}
	for name, text := range sourceFiles(t) {
		mark := map[string]string{".go": "//", ".sql": "--"}[path.Ext(name)]
		if mark == "" {
			continue
		}
		var comment strings.Builder // several lines are one sentence
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if said, ok := strings.CutPrefix(line, mark); ok {
				comment.WriteString(said + " ")
			} else if _, said, ok := strings.Cut(line, " "+mark+" "); ok {
				comment.WriteString(said + ". ")
			} else {
				comment.WriteString("\n")
			}
		}
		words += len(strings.Fields(comment.String()))
		for _, clause := range nounClause.FindAllString(comment.String(), -1) {
			found = append(found, name+": "+clause)
		}
	}
	slices.Sort(found)
	rate := 1000 * float64(len(found)) / float64(words)
	t.Logf("%d noun clauses in %d words of comments, %.2f per 1000", len(found), words, rate)
	if rate > 1 {
		t.Errorf("%.2f noun clauses per 1000 words, want at most 1:\n%s", rate, strings.Join(found, "\n"))
	}
}
