package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
)

const (
	maxFields           = 12 // of a struct with at least ownerMethods methods
	ownerMethods        = 5
	maxMethods          = 20 // of a struct, together with the methods of this module that it embeds
	maxInterfaceMethods = 6
	maxParameters       = 5  // of a function, besides the context
	maxBooleans         = 10 // parameters in the whole product
)

// checker collects what is above a bound.
type checker struct {
	pkg
	found    []string
	booleans []string
}

// check returns a line for each place that is above a bound.
func check(packages []pkg) []string {
	var c checker
	for _, p := range packages {
		c.pkg = p
		for _, tree := range p.trees {
			ast.Inspect(tree, func(node ast.Node) bool {
				c.node(node)
				return true
			})
		}
	}
	if len(c.booleans) > maxBooleans {
		c.found = append(c.found, c.booleans...)
	}
	return c.found
}

func (c *checker) node(node ast.Node) {
	switch node := node.(type) {
	case *ast.TypeSpec:
		c.typeSpec(node)
	case *ast.InterfaceType:
		if t, ok := c.info.TypeOf(node).(*types.Interface); ok && t.NumMethods() > maxInterfaceMethods {
			c.above(node.Pos(), "an interface has %d methods, the bound is %d", t.NumMethods(), maxInterfaceMethods)
		}
	case *ast.FuncType:
		c.parameters(node)
	case *ast.FuncDecl:
		c.countBooleans(node.Name.Name, node.Type)
	case *ast.FuncLit:
		c.countBooleans("a function literal", node.Type)
	}
}

func (c *checker) typeSpec(spec *ast.TypeSpec) {
	named := c.info.Defs[spec.Name].Type()
	owner, isStruct := named.Underlying().(*types.Struct)
	if !isStruct || spec.Assign.IsValid() {
		return
	}
	methods := countMethods(named)
	if methods > maxMethods {
		c.above(spec.Pos(), "%s has %d methods, the bound is %d", spec.Name, methods, maxMethods)
	}
	if fields := countFields(owner); methods >= ownerMethods && fields > maxFields && !isRecord(owner) {
		c.above(spec.Pos(), "%s has %d fields and %d methods, the bound is %d fields", spec.Name, fields, methods, maxFields)
	}
}

// countMethods returns the number of methods that this module declares for a type and for everything that it embeds.
func countMethods(named types.Type) (methods int) {
	for method := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		if declaring := method.Obj().Pkg(); declaring != nil && strings.HasPrefix(declaring.Path(), module) {
			methods++
		}
	}
	return methods
}

// isRecord reports whether a struct is a record of data: it keeps nothing to itself.
func isRecord(owner *types.Struct) bool {
	for field := range owner.Fields() {
		if !field.Exported() {
			return false
		}
	}
	return true
}

// countFields returns the number of a struct's own fields and of the fields that it embeds.
func countFields(owner *types.Struct) (fields int) {
	for field := range owner.Fields() {
		embedded, isStruct := field.Type().Underlying().(*types.Struct)
		if field.Embedded() && isStruct {
			fields += countFields(embedded)
		} else {
			fields++
		}
	}
	return fields
}

func (c *checker) parameters(function *ast.FuncType) {
	count := 0
	for _, parameter := range function.Params.List {
		if c.info.TypeOf(parameter.Type).String() != "context.Context" {
			count += max(1, len(parameter.Names))
		}
	}
	if count > maxParameters {
		c.above(function.Pos(), "a function has %d parameters besides the context, the bound is %d", count, maxParameters)
	}
}

func (c *checker) countBooleans(name string, function *ast.FuncType) {
	for _, parameter := range function.Params.List {
		if c.info.TypeOf(parameter.Type) != types.Typ[types.Bool] {
			continue
		}
		for range max(1, len(parameter.Names)) {
			c.booleans = append(c.booleans, c.line(parameter.Pos(), "%s has a boolean parameter, the bound is %d in the product", name, maxBooleans))
		}
	}
}

func (c *checker) above(at token.Pos, format string, arguments ...any) {
	c.found = append(c.found, c.line(at, format, arguments...))
}

// line returns a line that names the place first, relative to the working directory if that is possible.
func (c *checker) line(at token.Pos, format string, arguments ...any) string {
	place := c.files.Position(at)
	if working, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(working, place.Filename); err == nil {
			place.Filename = relative
		}
	}
	return fmt.Sprintf("%s: %s", place, fmt.Sprintf(format, arguments...))
}
