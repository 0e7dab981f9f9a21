package main

import "regexp"

// A form is a way to write that is rare in projects whose comments are easy to read.
type form struct {
	name    string
	pattern *regexp.Regexp
	// models is the highest share among four projects with clear comments: river, boulder's ratelimits, alertmanager's notify and
	// dispatch, and sunlight. In tenths of a percent.
	models int
}

var forms = []form{
	{
		name:    "that one, those that, the one, the others, the same",
		pattern: regexp.MustCompile(`\b(that one|those (that|of|which|who)|the ones?\b|the others?\b|others\b|the same\b|each other)`),
		models:  34,
	},
	{
		name:    "likewise, as they, as it, as those, as before, as far",
		pattern: regexp.MustCompile(`\b(likewise|as (they|those|these|it|that|before|much|many|far))\b`),
		models:  5,
	},
	{
		name:    "of which, in which, to which, whose",
		pattern: regexp.MustCompile(`\b(of|to|in|from|by|for|with|on|at) which\b|\bwhose\b`),
		models:  32,
	},
	{
		name:    "opens with Of, So, None, Nor, Neither, What, Nothing, Only, Where",
		pattern: regexp.MustCompile(`^(Of|So|None|Nor|Neither|Else|What|Nobody|Nothing|Only|Where|Whoever|Whatever|Until|Than)\b`),
		models:  26,
	},
	{
		name:    ": else, , or, , nor as an afterthought",
		pattern: regexp.MustCompile(`[:,;] (else|or|nor)\b`),
		models:  17,
	},
	{
		name:    "is told, is asked, is said, is taken, is known, is kept",
		pattern: regexp.MustCompile(`\b(is|are|was|were|be) (to be|said|told|asked|known|taken|given|kept|made|noted|waited|held)\b`),
		models:  14,
	},
}

// An area is a part of the repository whose shares are compared with the models.
type area struct {
	name  string
	paths []string
}

var areas = []area{
	{name: "code", paths: []string{"internal", "cmd", "lua"}},
	{name: "docs", paths: []string{"docs", "README.md", "CONTRIBUTING.md"}},
}
