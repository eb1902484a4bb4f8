package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// find returns the mutants of these names, or all if there are none.
func find(names []string) (chosen []mutant, err error) {
	var known []string
	for _, m := range mutants {
		known = append(known, m.name)
		if len(names) == 0 || slices.Contains(names, m.name) {
			chosen = append(chosen, m)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no mutant is named %q; known are %s", name, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}

// apply returns the files of the module in root that m changes, by path, with their
// content.
func (m mutant) apply(root string) (map[string]string, error) {
	files := map[string]string{}
	for _, e := range m.edits {
		content, ok := files[e.file]
		if !ok {
			read, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return nil, fmt.Errorf("%s: %w; an edit in internal/test/mutant/mutants.go names a file that is gone: give it the new path", m.name, err)
			}
			content = string(read)
		}
		if n := strings.Count(content, e.text); n != 1 {
			return nil, fmt.Errorf("%s: %s has this text %d times, and an edit needs it once: change the edit in internal/test/mutant/mutants.go to fit the code\n%s", m.name, e.file, n, e.text)
		}
		files[e.file] = strings.Replace(content, e.text, e.by, 1)
	}
	return files, nil
}

// overlay writes a file for the flag -overlay of go build and go test into dir, which
// plants m in the module in root, and returns its path.
func (m mutant) overlay(root, dir string) (string, error) {
	files, err := m.apply(root)
	if err != nil {
		return "", err
	}
	if root, err = filepath.Abs(root); err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for file, content := range files {
		mutated := filepath.Join(dir, m.name, file)
		replace[filepath.Join(root, file)] = mutated
		if err := os.MkdirAll(filepath.Dir(mutated), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(mutated, []byte(content), 0o644); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, m.name+".json")
	return path, os.WriteFile(path, text, 0o644)
}
