package penstock_test

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// secretWords name, in identifiers, what must not be compared byte by byte until the first difference.
var secretWords = []string{"secret", "signature", "proof", "mac", "hmac", "passphrase", "password"}

// TestSecretsAreComparedInConstantTime finds comparisons of secrets, signatures and proofs by an operator or by a
// function that stops early. Only hmac.Equal and crypto/subtle may do that; whether there is one at all (nil,
// "", a length) may be asked in any way.
func TestSecretsAreComparedInConstantTime(t *testing.T) {
	early := []string{"bytes.Equal", "bytes.Compare", "strings.EqualFold", "strings.Compare", "slices.Equal",
		"reflect.DeepEqual", "cmp.Compare"}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			var compared []ast.Expr
			switch e := n.(type) {
			case *ast.BinaryExpr:
				if e.Op == token.EQL || e.Op == token.NEQ {
					compared = []ast.Expr{e.X, e.Y}
				}
			case *ast.CallExpr:
				if slices.Contains(early, nameOf(e.Fun)) {
					compared = e.Args
				}
			}
			if slices.ContainsFunc(compared, isSecret) && !slices.ContainsFunc(compared, isNothing) {
				t.Errorf("%s: a secret is compared with ==, or by a function that stops at the first difference",
					s.fset.Position(n.Pos()))
			}
			return true
		})
	}
	for name, want := range map[string]bool{
		"secretKey": true, "SecretKey": true, "clientProof": true, "sum_mac": true, "HMAC": true, "machine": false,
		"Signatures": false, "x": false,
	} {
		if isSecret(&ast.Ident{Name: name}) != want {
			t.Errorf("%s counts as a secret: %v", name, !want)
		}
	}
}

// nameOf is the dotted name of an expression; of a call or an index, that of what is called or indexed.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return nameOf(e.X) + "." + e.Sel.Name
	case *ast.ParenExpr:
		return nameOf(e.X)
	case *ast.StarExpr:
		return nameOf(e.X)
	case *ast.SliceExpr:
		return nameOf(e.X)
	case *ast.CallExpr:
		if id, ok := e.Fun.(*ast.Ident); ok && id.Name == "len" {
			return "len"
		}
		if len(e.Args) == 1 { // a conversion, or a function of it
			return nameOf(e.Fun) + "." + nameOf(e.Args[0])
		}
		return nameOf(e.Fun)
	}
	return ""
}

// isSecret says whether the last name of an expression has a secret word in it.
func isSecret(e ast.Expr) bool {
	name := nameOf(e)
	name = name[strings.LastIndexByte(name, '.')+1:]
	var word strings.Builder
	var last rune
	for _, c := range name + "_" {
		begins := unicode.IsUpper(c) && unicode.IsLower(last)
		if begins || c == '_' {
			if slices.Contains(secretWords, strings.ToLower(word.String())) {
				return true
			}
			word.Reset()
		}
		if c != '_' {
			word.WriteRune(c)
		}
		last = c
	}
	return false
}

// isNothing says whether an expression is nil, the empty string or a number.
func isNothing(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "nil"
	case *ast.BasicLit:
		return e.Kind == token.INT || e.Value == `""`
	}
	return false
}
