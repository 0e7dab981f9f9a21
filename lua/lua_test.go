package lua_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/lua"
)

// section returns the text of the README below a heading.
func section(t *testing.T, heading string) string {
	t.Helper()
	_, below, found := strings.Cut(testkit.Text(t, "README.md"), "\n## "+heading+"\n")
	testkit.Require(t, found, "README.md has no section %q", heading)
	text, _, _ := strings.Cut(below, "\n## ")
	return text
}

// rows returns the cells of the tables in a section, without backquotes.
func rows(t *testing.T, heading string) [][]string {
	t.Helper()
	var found [][]string
	for line := range strings.Lines(section(t, heading)) {
		if line, isRow := strings.CutPrefix(line, "| "); isRow {
			line = strings.ReplaceAll(strings.TrimSuffix(line, " |\n"), "`", "")
			found = append(found, strings.Split(line, " | "))
		}
	}
	testkit.Require(t, len(found) != 0, "README.md has no table in section %q", heading)
	return found
}

// sources lists the Lua files, without the ending.
func sources(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, pattern := range []string{"*.lua", "*/*.lua"} {
		for _, file := range testkit.Must(filepath.Glob(pattern))(t) {
			names = append(names, strings.TrimSuffix(filepath.ToSlash(file), ".lua"))
		}
	}
	return names
}

func TestReadmeListsTheFiles(t *testing.T) {
	t.Parallel()
	listed := make(map[string]bool)
	for _, row := range rows(t, "Scripts") {
		listed[row[0]] = true
	}
	files := sources(t)
	for _, file := range files {
		testkit.Check(t, listed[file], "README.md does not list %s.lua", file)
	}
	for name := range listed {
		if isHeading := name == "script" || name == "included file"; !isHeading && !slices.Contains(files, name) {
			t.Errorf("README.md lists %s.lua, which does not exist", name)
		}
	}
	for _, script := range lua.Scripts {
		testkit.Check(t, slices.Contains(files, string(script)), "%s is a script without a file", script)
	}
}

func TestReadmeNamesTheCallers(t *testing.T) {
	t.Parallel()
	callers := callersOfScripts(t)
	listed := make(map[string]string)
	for _, row := range rows(t, "Scripts") {
		if len(row) == 3 {
			listed[row[0]] = row[2]
		}
	}
	for _, script := range lua.Scripts {
		called := slices.Sorted(maps.Keys(callers[identifier(script)]))
		testkit.Equal(t, listed[string(script)], strings.Join(called, ", "), "callers of %s in README.md", script)
	}
}

// identifier returns the name of a script's constant: Pace for pacing/pace, AdoptLimits for adopt_limits.
func identifier(script lua.Script) string {
	var name strings.Builder
	for word := range strings.SplitSeq(filepath.Base(string(script)), "_") {
		name.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return name.String()
}

// callersOfScripts returns the functions that pass the constant of a script on, by constant.
func callersOfScripts(t *testing.T) map[string]map[string]bool {
	t.Helper()
	callers := make(map[string]map[string]bool)
	for _, file := range slices.Concat(testkit.Must(filepath.Glob("../internal/*/*.go"))(t), testkit.Must(filepath.Glob("../internal/*/*/*.go"))(t)) {
		if strings.HasSuffix(file, "_test.go") || !strings.Contains(testkit.Text(t, file), "lua.") {
			continue
		}
		parsed := testkit.Must(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t)
		for _, declaration := range parsed.Decls {
			function, isFunction := declaration.(*ast.FuncDecl)
			if !isFunction {
				continue
			}
			ast.Inspect(function, func(node ast.Node) bool {
				var passed []ast.Expr
				switch node := node.(type) {
				case *ast.CallExpr:
					passed = node.Args
				case *ast.KeyValueExpr:
					passed = []ast.Expr{node.Value}
				}
				for _, argument := range passed {
					if script := constant(argument); script != "" {
						if callers[script] == nil {
							callers[script] = make(map[string]bool)
						}
						callers[script][function.Name.Name] = true
					}
				}
				return true
			})
		}
	}
	return callers
}

// constant returns the name of a constant of the package lua, "" for another expression.
func constant(expression ast.Expr) string {
	selector, isSelector := expression.(*ast.SelectorExpr)
	if !isSelector {
		return ""
	}
	if name, isName := selector.X.(*ast.Ident); !isName || name.Name != "lua" {
		return ""
	}
	return selector.Sel.Name
}

func TestReadmeListsTheVerdicts(t *testing.T) {
	t.Parallel()
	var listed [][]string
	for _, row := range rows(t, "Verdicts") {
		if row[0] != "number" {
			listed = append(listed, row[:3])
		}
	}
	numbers := regexp.MustCompile(`(?m)^local ([A-Z_]+) = (\d+)`).FindAllStringSubmatch(testkit.Text(t, "lib/verdicts.lua"), -1)
	names := verdictsInGo(t)
	const inGoAlone = 2 // Deferred and Planned come from no script
	testkit.Require(t, len(numbers) != 0 && len(numbers)+inGoAlone == len(names) && len(numbers) == len(listed),
		"%d verdicts in lib/verdicts.lua, %d in Go, %d in README.md", len(numbers), len(names), len(listed))
	for i, verdict := range numbers {
		want := []string{verdict[2], verdict[1], names[i]}
		testkit.Check(t, slices.Equal(listed[i], want), "README.md says %q, the code %q", listed[i], want)
	}
}

// verdictsInGo returns the constants of the type Verdict in their order.
func verdictsInGo(t *testing.T) []string {
	t.Helper()
	block := regexp.MustCompile(`(?s)const \(\n(\tAdmitted\s+Verdict = iota \+ 1.*?)\n\)`)
	for _, file := range testkit.Must(filepath.Glob("../internal/throttle/store/*.go"))(t) {
		if found := block.FindStringSubmatch(testkit.Text(t, file)); found != nil {
			var names []string
			for line := range strings.Lines(found[1]) {
				names = append(names, strings.Fields(line)[0])
			}
			return names
		}
	}
	t.Fatal("internal/throttle/store has no constants of the type Verdict that begin with Admitted")
	return nil
}

// TestReadmeListsTheKeys compares the keys of the README with the headers of the scripts.
func TestReadmeListsTheKeys(t *testing.T) {
	t.Parallel()
	types := make(map[string]string)
	for _, row := range rows(t, "Keys") {
		for name := range strings.SplitSeq(row[0], ", ") {
			types[pattern(name)] = row[1]
		}
	}
	header := regexp.MustCompile(`(?m)^--   \d+…? +([a-z:…]+) +(sorted set|string|hash)\b`)
	named := make(map[string]bool)
	for _, script := range lua.Scripts {
		for _, key := range header.FindAllStringSubmatch(testkit.Text(t, string(script)+".lua"), -1) {
			named[key[1]] = true
			testkit.Equal(t, types[key[1]], key[2], "type of the key %s of %s.lua in README.md", key[1], script)
		}
	}
	testkit.Check(t, len(named) >= 15, "the headers of the scripts name %d keys only: %v", len(named), slices.Sorted(maps.Keys(named)))
}

// pattern replaces the variable part of a key by …, as the headers of the scripts do.
func pattern(key string) string {
	if fixed, _, varies := strings.Cut(key, "<"); varies {
		return fixed + "…"
	}
	return key
}
