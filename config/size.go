package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

var sizeUnits = []string{"B", "KiB", "MiB", "GiB", "TiB"}

// ParseSize reads a number of bytes such as 256MiB, in the units of GOMEMLIMIT: B, KiB,
// MiB, GiB and TiB.
func ParseSize(s string) (uint64, error) {
	digits := strings.TrimRight(s, "BKMGTi")
	unit := slices.Index(sizeUnits, s[len(digits):])
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || unit < 0 || n > math.MaxInt64>>(10*unit) {
		return 0, fmt.Errorf("%s is not a size (such as 256MiB or 1GiB)", quote(s))
	}
	return n << (10 * unit), nil
}

// FormatSize is the short form that ParseSize reads back.
func FormatSize(bytes uint64) string {
	unit := 0
	for ; bytes > 0 && bytes%1024 == 0 && unit < len(sizeUnits)-1; unit++ {
		bytes /= 1024
	}
	return fmt.Sprint(bytes, sizeUnits[unit])
}
