package main

import (
	"fmt"
	"time"
)

// shortTime is a duration in its two largest units.
func shortTime(d time.Duration) string {
	switch d = max(d, 0); {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= time.Second:
		return d.Truncate(time.Second).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}

// sizeOf is a number of bytes, of so many where there is a bound.
func sizeOf(bytes, bound int64) string {
	text := inUnits(bytes)
	if bound > 0 {
		text += " of " + inUnits(bound)
	}
	return text
}

func inUnits(bytes int64) string {
	value, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	unit := 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	return fmt.Sprintf("%.4g %s", value, units[unit])
}
