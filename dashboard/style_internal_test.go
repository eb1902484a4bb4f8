package dashboard

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Texts have the contrast that WCAG 2 AA asks for, 4.5 to 1, in both schemes.
func TestTextsAreReadable(t *testing.T) {
	style, err := static.ReadFile("static/style.css")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile(`(?s):root \{(.*?)\}`).FindAllStringSubmatch(string(style), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d schemes, want a light and a dark one", len(blocks))
	}
	for i, block := range blocks {
		colors := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]+);`).FindAllStringSubmatch(block[1], -1) {
			colors[m[1]] = luminance(t, m[2])
		}
		for on, texts := range map[string]string{
			"bg": "text dim accent bad", "panel": "text dim accent bad warn good", "code": "text dim accent bad", "accent": "panel",
			"good-bg": "text good dim", "warn-bg": "text warn dim", "bad-bg": "text bad dim",
		} {
			for _, text := range strings.Fields(texts) {
				a, okA := colors[on]
				b, okB := colors[text]
				if ratio := (math.Max(a, b) + 0.05) / (math.Min(a, b) + 0.05); !okA || !okB || ratio < 4.5 {
					t.Errorf("scheme %d: %s on %s has a contrast of %.2f, want 4.5", i, text, on, ratio)
				}
			}
		}
	}
}

// luminance is the relative luminance of WCAG 2.
func luminance(t *testing.T, hex string) float64 {
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			sum += weight * c / 12.92
		} else {
			sum += weight * math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return sum
}
