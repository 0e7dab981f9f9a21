package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "github.com/seed-4578ace9/notifier"

// A pkg is a package of the product with the types of its expressions.
type pkg struct {
	files *token.FileSet
	trees []*ast.File
	info  *types.Info
}

// listed is what the go command knows of a package.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// isProduct reports whether the bounds apply to a package.
func (l listed) isProduct() bool {
	return !l.DepOnly && !strings.Contains(l.ImportPath, "/internal/testing/") && !strings.Contains(l.ImportPath, "/internal/tools/")
}

// load returns the packages of the product below a directory, without their tests.
func load(directory string) ([]pkg, error) {
	all, err := list(directory)
	if err != nil {
		return nil, err
	}
	exports := make(map[string]string)
	for _, l := range all {
		exports[l.ImportPath] = l.Export
	}
	files := token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var packages []pkg
	for _, l := range all {
		if !l.isProduct() {
			continue
		}
		p, err := parse(files, l, imports)
		if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// list asks the go command for the packages below a directory, and for everything that they import.
func list(directory string) ([]listed, error) {
	command := exec.CommandContext(context.Background(), "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly", "./...")
	command.Dir, command.Stderr = directory, os.Stderr
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages: %w", err)
	}
	var all []listed
	for decoder := json.NewDecoder(strings.NewReader(string(output))); ; {
		var l listed
		if err := decoder.Decode(&l); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("listing packages: %w", err)
		}
		all = append(all, l)
	}
}

func parse(files *token.FileSet, l listed, imports types.Importer) (pkg, error) {
	p := pkg{files: files, info: &types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Defs: make(map[*ast.Ident]types.Object)}}
	for _, name := range l.GoFiles {
		tree, err := parser.ParseFile(files, filepath.Join(l.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return pkg{}, err
		}
		p.trees = append(p.trees, tree)
	}
	_, err := (&types.Config{Importer: imports}).Check(l.ImportPath, files, p.trees, p.info)
	return p, err
}
