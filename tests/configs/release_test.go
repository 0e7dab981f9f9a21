package configs_test

import (
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func workflows(t *testing.T) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	for _, file := range testkit.Must(filepath.Glob(root + ".github/workflows/*.yml"))(t) {
		texts[filepath.Base(file)] = string(read(t, file))
	}
	testkit.AtLeast(t, len(texts), 3, "workflows")
	return texts
}

func groups(text, expression string) (found []string) {
	for _, match := range regexp.MustCompile(expression).FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	return found
}

// pinned matches an image with a version and a digest.
var pinned = regexp.MustCompile(`:v?[0-9][^@]*@sha256:[0-9a-f]{64}$|:nonroot@sha256:[0-9a-f]{64}$`)

// TestDependabot wants updates for everything that is pinned: each module, the images of Dockerfile and compose.yaml, the actions.
func TestDependabot(t *testing.T) {
	t.Parallel()
	var config struct {
		Updates []struct {
			Ecosystem   string `yaml:"package-ecosystem"`
			Directory   string
			Directories []string
		}
	}
	testkit.NoError(t, yaml.Unmarshal(read(t, root+".github/dependabot.yml"), &config))
	covered := make(map[string][]string)
	for _, update := range config.Updates {
		covered[update.Ecosystem] = append(covered[update.Ecosystem], update.Directories...)
		if update.Directory != "" {
			covered[update.Ecosystem] = append(covered[update.Ecosystem], update.Directory)
		}
	}
	var modules []string
	list := exec.CommandContext(t.Context(), "git", "ls-files", "go.mod", "**/go.mod")
	list.Dir = root
	for file := range strings.FieldsSeq(output(t, list)) {
		modules = append(modules, path.Join("/", path.Dir(file)))
	}
	for ecosystem, want := range map[string][]string{"gomod": modules, "docker": {"/"}, "docker-compose": {"/"}, "github-actions": {"/"}} {
		testkit.EqualSlices(t, slices.Sorted(slices.Values(covered[ecosystem])), slices.Sorted(slices.Values(want)), "directories of %s", ecosystem)
	}
}

// TestReleaseIsPinned wants base images by digest, actions by commit, and one version of Go.
func TestReleaseIsPinned(t *testing.T) {
	t.Parallel()
	dockerfile := string(read(t, root+"Dockerfile"))
	images := groups(dockerfile, `(?m)^FROM (?:--platform=\S+ )?(\S+)`)
	testkit.Equal(t, len(images), 2, "base images")
	for _, image := range images {
		testkit.Check(t, pinned.MatchString(image), "Dockerfile: got the image %s, want one with tag and digest", image)
	}
	goVersions := groups(dockerfile, `/golang:([0-9.]+)-`)
	for name, text := range workflows(t) {
		for _, action := range groups(text, `uses: (.*)`) {
			if !regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40} # v[0-9.]+$`).MatchString(action) && !strings.HasPrefix(action, "./") {
				t.Errorf("%s: %s is not pinned by commit, with its version as a comment", name, action)
			}
		}
		goVersions = append(goVersions, groups(text, `go-version: (\S+)`)...)
	}
	slices.Sort(goVersions)
	testkit.Equal(t, len(slices.Compact(goVersions)), 1, "versions of Go: %v;", goVersions)
}

// TestWorkflowsHaveFewRights wants workflows without default rights, and write access in release.yml alone.
func TestWorkflowsHaveFewRights(t *testing.T) {
	t.Parallel()
	for name, text := range workflows(t) {
		var workflow struct {
			Permissions map[string]string
			Jobs        map[string]struct{ Permissions map[string]string }
		}
		testkit.NoError(t, yaml.Unmarshal([]byte(text), &workflow))
		testkit.Check(t, workflow.Permissions != nil && len(workflow.Permissions) == 0,
			"%s: it has the rights %v by default, want none", name, workflow.Permissions)
		for job, has := range workflow.Jobs {
			for right, level := range has.Permissions {
				if level != "read" && name != "release.yml" {
					t.Errorf("%s: %s may %s %s", name, job, level, right)
				}
			}
			testkit.Check(t, len(has.Permissions) != 0, "%s: got no rights of the job %s, want at least one to read the source", name, job)
		}
	}
}
