package configs_test

import (
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/seed-4578ace9/notifier/internal/testing/doctest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestPages parses the YAML of the pages. TestPages of package tests checks all other blocks.
func TestPages(t *testing.T) {
	t.Parallel()
	parsed := 0
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../lua/*.md"} {
		for _, file := range testkit.Must(filepath.Glob(pattern))(t) {
			for _, block := range testkit.Must(doctest.Blocks(string(read(t, file))))(t) {
				if block.Language != "yaml" {
					continue
				}
				parsed++
				err := yaml.Unmarshal([]byte(block.Text), new(map[string]any))
				testkit.Check(t, err == nil, "%s:%d: %v", file, block.Line, err)
			}
		}
	}
	testkit.AtMost(t, 1, parsed, "least number of YAML blocks")
}
